"""The warning about a missing tracer provider."""

from __future__ import annotations

import time

from otel_recfn.session.capture import Capture
from otel_recfn.support.logs import log
from otel_recfn.support.processes import logs_for_all_children

UNUSED_SECONDS = 5.0
"""The seconds for which a program may record ranges before it sets its tracer provider."""
_NO_PROVIDER = """\
no tracer provider is set in this process, so nothing that otel-recfn records here becomes a span; \
where it starts, add
  trace.set_tracer_provider(provider := TracerProvider())  # from opentelemetry import trace; \
from opentelemetry.sdk.trace import TracerProvider
  provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))  # \
from opentelemetry.sdk.trace.export import BatchSpanProcessor; \
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
or record to a local file: instrument(chrome_trace="trace.json.gz")
or let otel-recfn send its spans itself: instrument(span_exporter="otlp")"""


class UnusedRanges:
    """A warning, once in a process, that what is recorded has no use, because the program has set
    no tracer provider.

    Of children that aren't forked only the first warns.
    """

    def __init__(self) -> None:
        self._since: float | None = None
        """The time at which ranges without a use were first seen; None while there are none."""
        self._warned = False

    def check(self, capture: Capture, *, ends: bool = False) -> None:
        """Warn after a drain, if ranges of a capture that makes spans have had no use for some
        seconds, or it ends.
        """
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
