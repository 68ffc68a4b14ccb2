"""The ends of a process and of a capture: exit handlers, and log messages about losses and a missing provider."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from opentelemetry import metrics, trace

from otel_recfn.session.capture import Capture
from otel_recfn.support.processes import is_beginning, logs_for_all_children

log = logging.getLogger("otel_recfn")

UNUSED_SECONDS = 5.0
"""The seconds for which a program may record ranges before it sets its tracer provider."""
_NO_PROVIDER = """\
no tracer provider is set in this process, so nothing that otel-recfn records here becomes a span; where it starts, add
  trace.set_tracer_provider(provider := TracerProvider())  # from opentelemetry import trace; \
from opentelemetry.sdk.trace import TracerProvider
  provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))  # \
from opentelemetry.sdk.trace.export import BatchSpanProcessor; \
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
or record to a local file: instrument(chrome_trace="trace.json.gz")
or, where a child lacks the provider that its program has, let it send spans itself: instrument(span_exporter="otlp")"""
_REASONS: Mapping[str, str] = {
    "dropped.buffer_full": "threads recorded more between two drains than their buffers hold, or nested deeper than is "
    "followed; raise buffer_bytes, or record fewer scopes",
    "dropped.queue_full": "the backend is slower than the program, or down; lower ordinary_span_budget or spans_per_second, "
    "sample less, or speed up the exporter",
    "dropped.shutdown": "the time for the end was over before they were sent; flush() before it, raise exit_timeout_s, or "
    "speed up what they go to",
    "dropped.error": "there was no memory for them, or what takes them failed; see the error above",
    "dropped.store_full": "more ran than is kept; raise max_events, or record a shorter time",
    "failed": "exporters or the backend refused them; see their errors, and whether the backend is up",
    "incomplete": "too many ranges ended on other threads at once, before they were read",
    "chrome_trace.dropped.queue_full": "the disk is slower than the program; record less, or write to another disk",
    "chrome_trace.dropped.error": "the file could not be written; see the error above, and whether the disk is full",
}
"""The likely cause and the way out, by counter or by the part of it after the sink's name."""


class ExitHandler:
    """An exit handler that runs before those that shut the providers of spans and of metrics down.

    Exit handlers run last in, first out, so ours has to be registered after the providers'. One that was set right at the end
    is seen when Python begins to wait for threads, before it runs exit handlers. ``concurrent.futures`` learns of that by a
    function of ``threading`` with a private name; without it, a provider is seen a tenth of a second after it was set.
    """

    def __init__(self, at_exit: Callable[[], None]) -> None:
        self._at_exit = at_exit
        self.providers: tuple[object, object] = (None, None)
        """The providers of spans and of metrics at registration; None while not registered."""
        self._finishes_in = 0
        """The process in which multiprocessing's finalizer was registered."""
        register: Callable[[Callable[[], None]], None] | None = getattr(
            threading, "_register_atexit", None
        )
        if register is not None:
            with suppress(RuntimeError):  # Python is already ending
                register(partial(_follow_last, weakref.ref(self)))

    def follow_provider(self) -> None:
        """Register the function, again if one of the providers is another one than the last time."""
        spans, measured = trace.get_tracer_provider(), metrics.get_meter_provider()
        if (spans, measured) != self.providers:
            self.providers = (spans, measured)
            atexit.unregister(self._at_exit)
            atexit.register(self._at_exit)

    def finish_in_multiprocessing_child(self) -> None:
        """Register with multiprocessing, once, in a child of it that no fork has made known."""
        processes, util = (
            sys.modules.get("multiprocessing.process"),
            sys.modules.get("multiprocessing.util"),
        )
        if processes is None or util is None or self._finishes_in == os.getpid():
            return
        self._finishes_in = os.getpid()
        if processes.parent_process() is not None or is_beginning():
            util.Finalize(None, self._at_exit, exitpriority=0)
        if is_beginning():  # a process of a fork server will still drop what is registered now
            self.finish_in_forked_child()

    def finish_in_forked_child(self) -> None:
        """Register with multiprocessing: its children end by ``os._exit``, which runs its finalizers but no exit handlers."""
        util = sys.modules.get("multiprocessing.util")
        if util is not None:
            # The child forgets its inherited finalizers right after the fork, and then runs what is registered here.
            util.register_after_fork(
                self, lambda living: util.Finalize(None, living._at_exit, exitpriority=0)
            )

    def unregister(self) -> None:
        """Unregister the function."""
        atexit.unregister(self._at_exit)
        self.providers = (None, None)


def _follow_last(handler: weakref.ref[ExitHandler]) -> None:
    living = handler()
    if living is not None and living.providers != (None, None):
        living.follow_provider()


def log_losses(lost: Mapping[str, int]) -> None:
    """Log, when a capture has ended, what was lost while it ran."""
    for name, count in lost.items():
        log.warning("otel-recfn lost %s=%d: %s", name, count, reason(name))


class UnusedRanges:
    """A warning, once in a process, that nothing is recorded for anybody because the program has set no tracer provider. Of
    children that aren't forked only the first warns."""

    def __init__(self) -> None:
        self._since: float | None = None
        """The time at which ranges without a use were first seen; None while there are none."""
        self._warned = False

    def look(self, capture: Capture, *, ends: bool = False) -> None:
        """Warn after a drain, if ranges of a capture that makes spans have had no use for some seconds, or it ends."""
        if self._warned or capture.is_used or capture.spans is None or not capture.rows:
            return
        capture.is_used = capture.wants_unsampled or not capture.spans.lacks_provider()
        if capture.is_used:
            self._since = None
            return
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if ends or now - self._since >= UNUSED_SECONDS:
            self._warned = True
            if logs_for_all_children():
                log.warning(_NO_PROVIDER)

    def after_fork_in_child(self) -> None:
        """Warn of nothing in a forked child: its parent does."""
        self._warned = self._warned or self._since is not None


def reason(name: str) -> str:
    """The likely cause of a counter of losses, and the way out."""
    return _REASONS.get(name) or _REASONS.get(name.partition(".")[2], "see the log")
