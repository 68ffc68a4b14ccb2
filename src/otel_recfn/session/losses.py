"""Tells what was lost while a capture ran: how much, where, why most likely, and what helps; and where all goes nowhere."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from otel_recfn.session.capture import Capture
from otel_recfn.support.processes import given_here, is_the_one_to_tell

log = logging.getLogger("otel_recfn")

UNUSED_SECONDS = 5.0
"""For so long a program may record ranges before it sets its tracer provider."""
_NO_PROVIDER = """\
no tracer provider is set{where}, so nothing that otel-recfn records{there} becomes a span; where the {starts}, add
  trace.set_tracer_provider(provider := TracerProvider())  # from opentelemetry import trace; \
from opentelemetry.sdk.trace import TracerProvider
  provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))  # \
from opentelemetry.sdk.trace.export import BatchSpanProcessor; \
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
or record to a local file: instrument(chrome_trace="trace.json.gz")"""
_IN_PROGRAM = {"where": "", "there": "", "starts": "program starts"}
_IN_CHILD = {"where": " in a child process", "there": " there", "starts": "child starts, as at the top of its main module"}
_WITHOUT_IN_CHILD = '; or let children send spans as their program does, which has a provider: instrument(span_exporter="otlp")'
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
    "incomplete": "names, shapes or stacks did not fit a thread's buffer, or too many ranges ended on other threads at once; "
    "raise buffer_bytes",
    "chrome_trace.dropped.queue_full": "the disk is slower than the program; record less, or write to another disk",
    "chrome_trace.dropped.error": "the file could not be written; see the error above, and whether the disk is full",
}
"""By the counter, or its part after the sink's name: the likely cause, and the way out."""


def tell_losses(lost: Mapping[str, int]) -> None:
    """Log, when a capture has ended, what was lost while it ran."""
    for name, count in lost.items():
        log.warning("otel-recfn lost %s=%d: %s", name, count, reason(name))


class UnusedRanges:
    """Tells, once in a process, that what it records goes nowhere because the program has set no tracer provider; and of the
    children that aren't forked only in the first."""

    def __init__(self) -> None:
        self._since: float | None = None
        """When ranges were first seen that nobody uses; None while there are none."""
        self._told = False

    def look(self, capture: Capture, *, alone: bool, ends: bool = False) -> None:
        """Tell it where that has gone on for some seconds, or the capture ends. After a drain.

        Args:
            capture: for which no provider was seen so far. Where it makes no spans it isn't looked at.
            alone: no other capture has run beside it.
            ends: it has got all that it will get.
        """
        if self._told or capture.shown is None or not capture.rows:
            return
        capture.has_provider = not capture.shown.spans.lacks_provider()
        if capture.has_provider or not alone or capture.wants_unsampled:
            self._since = None
            return
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if ends or now - self._since >= UNUSED_SECONDS:
            self._told = True
            _tell_of_no_provider()

    def after_fork_in_child(self) -> None:
        """In a child: a parent that has such ranges tells it itself."""
        self._told = self._told or self._since is not None


def _tell_of_no_provider() -> None:
    if given_here() is None:
        log.warning(_NO_PROVIDER.format(**_IN_PROGRAM))
    elif is_the_one_to_tell():
        log.warning(_NO_PROVIDER.format(**_IN_CHILD) + _WITHOUT_IN_CHILD)


def reason(name: str) -> str:
    """Why such a counter grows, most likely, and what helps."""
    return _REASONS.get(name) or _REASONS.get(name.partition(".")[2], "see the log")
