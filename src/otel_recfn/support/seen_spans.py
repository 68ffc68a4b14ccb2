"""The program's own spans that were current while ranges were recorded: files tell their names, which recorded rows don't say.

program's thread   note(span)  ──►  the newest of this process  ──►  find   sink's thread

A span that only holds other spans (an epoch, of steps) is around what ran all the same. It says nothing of itself then, so
each span that becomes current is remembered, without keeping it alive, for when one inside it is noted.
"""

from __future__ import annotations

import contextlib
import weakref
from itertools import islice
from typing import Any

MOST = 1 << 12
"""So many are kept, with what they hold on to."""
Key = tuple[int, int]


class SeenSpans:
    """By trace id and span id. Every method may be called from any thread, and takes no lock."""

    def __init__(self) -> None:
        self._spans: dict[Key, Any] = {}
        self._current: dict[Key, weakref.ref[Any]] = {}

    def became_current(self, trace_id: int, span_id: int, span: object) -> None:
        """Others may lie in it."""
        if (trace_id, span_id) not in self._current:
            with contextlib.suppress(TypeError):  # of a class without weak references
                _add(self._current, (trace_id, span_id), weakref.ref(span))

    def note(self, trace_id: int, span_id: int, span: object) -> None:
        """Something is recorded below this span."""
        key: Key = trace_id, span_id
        while span is not None and key not in self._spans:
            _add(self._spans, key, span)
            parent = getattr(span, "parent", None)
            key = getattr(parent, "trace_id", 0), getattr(parent, "span_id", 0)
            around = self._current.get(key)
            span = around() if around is not None else None

    def find(self, trace_id: int, span_id: int) -> Any:
        """The span; None where it isn't known any more."""
        return self._spans.get((trace_id, span_id))


def _add(spans: dict[Key, Any], key: Key, span: object) -> None:
    """The oldest go where there are too many."""
    spans[key] = span
    if len(spans) > MOST:
        with contextlib.suppress(RuntimeError):  # another thread adds one meanwhile, and sees to it
            for oldest in list(islice(spans, MOST // 4)):
                spans.pop(oldest, None)


seen_spans = SeenSpans()
"""Of this process, whatever captures run. A forked child may still work inside spans of its parent, so it keeps them."""
