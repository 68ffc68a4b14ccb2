"""The program's own spans that were current while ranges were recorded, for files, which show their names.

program's thread   became_current, note  ──►  the newest of this process  ──►  find   sink's thread

A span that only holds other spans (an epoch, of steps) is around what ran all the same. It says nothing of itself then, so
each span that becomes current is remembered, without keeping it alive, for when one inside it is noted.

Spans are kept alive only while a file may come to name them (``keep_alive``): thousands of them, spread over the memory that
the program allocates from, made each of its allocations slower.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from itertools import islice
from typing import Any, TypeVar

MOST = 1 << 12
"""The most spans that are kept, with what they hold on to."""
Key = tuple[int, int]
Kept = TypeVar("Kept")


class SeenSpans:
    """The spans by trace id and span id. Every method may be called from any thread, and takes no lock."""

    def __init__(self) -> None:
        self._spans: dict[Key, Any] = {}
        self._current: dict[Key, weakref.ref[Any]] = {}
        self._keeps_alive = False

    def keep_alive(self, wanted: bool) -> None:
        """Keep spans findable when they are over, from now on, those that are open included; or no longer."""
        keeps_alive, self._keeps_alive = (
            self._keeps_alive,
            wanted,
        )  # first, for what is noted meanwhile
        if wanted and not keeps_alive:
            for (
                key,
                current,
            ) in (
                self._current.copy().items()
            ):  # a copy is made in one go, while threads go on adding
                span = current()
                if span is not None and not _is_over(span):
                    _add(self._spans, key, span, _is_over)

    def became_current(self, trace_id: int, span_id: int, span: object) -> None:
        """Note a span that became current, in which others may lie."""
        if (trace_id, span_id) not in self._current:
            with contextlib.suppress(TypeError):  # a class without weak references
                _add(self._current, (trace_id, span_id), weakref.ref(span), _is_gone)

    def note(self, trace_id: int, span_id: int, span: object) -> None:
        """Note that something is recorded below this span."""
        if not self._keeps_alive:
            self.became_current(trace_id, span_id, span)
            return
        key: Key = trace_id, span_id
        span = (
            self._found_current(key) or span
        )  # a message may have brought the ids back, with a span that has nothing else
        while span is not None and key not in self._spans:
            _add(self._spans, key, span, _is_over)
            parent = getattr(span, "parent", None)
            key = getattr(parent, "trace_id", 0), getattr(parent, "span_id", 0)
            span = self._found_current(key)

    def _found_current(self, key: Key) -> Any:
        current = self._current.get(key)
        return current() if current is not None else None

    def find(self, trace_id: int, span_id: int) -> Any:
        """The span; None if it isn't known any more."""
        return self._spans.get((trace_id, span_id))


def _is_over(span: object) -> bool:
    return getattr(span, "end_time", None) is not None


def _is_gone(current: weakref.ref[Any]) -> bool:
    span = current()
    return span is None or _is_over(span)


def _add(spans: dict[Key, Kept], key: Key, span: Kept, is_over: Callable[[Kept], bool]) -> None:
    """Add a span. If there are too many, some of the oldest are removed, first those that are over."""
    spans[key] = span
    if len(spans) > MOST:
        with contextlib.suppress(RuntimeError):  # another thread adds one meanwhile, and sees to it
            oldest = list(islice(spans.items(), MOST // 2))
            over = [key for key, one in oldest if is_over(one)]
            for gone in [*over, *[key for key, one in oldest if not is_over(one)]][: MOST // 4]:
                spans.pop(gone, None)


seen_spans = SeenSpans()
"""The spans of this process. A forked child keeps its parent's, since it may still work inside them."""


def remember_current(span: Any) -> None:
    """Note a span that became current: it may lie around the spans that ranges run in."""
    of_span = span.get_span_context()
    if of_span.is_valid:
        seen_spans.became_current(of_span.trace_id, of_span.span_id, span)
