"""The program's own spans that ranges were recorded below: they say when they end, how long they took, and whether they failed.

program's thread   saw(span)  ──►  remembered, the newest  ──►  find ─ forget   sink's thread
"""

from __future__ import annotations

import contextlib
from itertools import islice

from opentelemetry.sdk.trace import ReadableSpan

MAX_REMEMBERED = 1 << 14


class ProgramSpans:
    """By trace id and span id. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._spans: dict[tuple[int, int], ReadableSpan] = {}

    def saw(self, trace_id: int, span_id: int, span: object) -> None:
        """A range began below this span. One that says nothing of itself, as a remote one, is not remembered."""
        if isinstance(span, ReadableSpan) and span.end_time is None:
            self._spans[trace_id, span_id] = span
            if len(self._spans) > MAX_REMEMBERED:
                self._forget_oldest()

    def find(self, trace_id: int, span_id: int) -> ReadableSpan | None:
        """The span; None where it isn't remembered."""
        return self._spans.get((trace_id, span_id))

    def forget(self, trace_id: int, span_id: int) -> None:
        """Nobody asks for it any more."""
        self._spans.pop((trace_id, span_id), None)

    def clear(self) -> None:
        """Forget all."""
        self._spans.clear()

    def _forget_oldest(self) -> None:
        with contextlib.suppress(RuntimeError):  # another thread adds one meanwhile, and sees to it
            for key in list(islice(self._spans, MAX_REMEMBERED // 4)):
                self._spans.pop(key, None)
