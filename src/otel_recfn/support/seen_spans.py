"""The program's own spans that were current while ranges were recorded: files tell their names, which recorded rows don't say.

program's thread   note(span)  ──►  the newest of this process  ──►  find   sink's thread
"""

from __future__ import annotations

import contextlib
from itertools import islice
from typing import Any

MOST = 1 << 12
"""So many are kept, with what they hold on to."""


class SeenSpans:
    """By trace id and span id. Every method may be called from any thread, and takes no lock."""

    def __init__(self) -> None:
        self._spans: dict[tuple[int, int], Any] = {}

    def note(self, trace_id: int, span_id: int, span: object) -> None:
        """Something is recorded below this span."""
        spans = self._spans
        if (trace_id, span_id) in spans:
            return
        spans[trace_id, span_id] = span
        if len(spans) > MOST:
            with contextlib.suppress(RuntimeError):  # another thread adds one meanwhile, and sees to it
                for key in list(islice(spans, MOST // 4)):
                    spans.pop(key, None)

    def find(self, trace_id: int, span_id: int) -> Any:
        """The span; None where it isn't known any more."""
        return self._spans.get((trace_id, span_id))


seen_spans = SeenSpans()
"""Of this process, whatever captures run. A forked child may still work inside spans of its parent, so it keeps them."""
