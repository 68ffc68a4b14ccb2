"""The program's own spans that were current while ranges were recorded. Files show their names.

program's thread   attach  ──►  weak references to the spans that became current
                   note    ──►  retained: the span that ranges are in, and all around it
sink's thread      find    ◄──  retained

A span may have no ranges directly in it, as that of an epoch, which has the spans of steps. No
range refers to it, so it is found when a span inside it is noted. For that there is a weak
reference to each span that becomes current. Programs attach all the time, so these references are
first collected in C++ (``native/parents/tasks/current_spans.hpp``), and the ids of the spans are
read later.

Spans are retained only while a file may name them, which is as long as somebody has the result of
``retain``. Thousands of spans in the memory that the program allocates from made each of its
allocations slower.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from itertools import islice
from typing import Any, TypeVar

from otel_recfn import _native
from otel_recfn.support.interruptions import raised_by_signal_handler

MAX_SEEN_SPANS = 1 << 12
"""The most spans that are retained, each with all that it refers to."""
Key = tuple[int, int]
Value = TypeVar("Value")


class RetainedSpans(dict[Key, Any]):
    """Strong references to spans, by trace id and span id."""

    __slots__ = ("__weakref__",)


class SeenSpans:
    """The program's newest spans, by trace id and span id.

    Every method but ``retain`` may be called from any thread, and takes no lock.
    """

    def __init__(self) -> None:
        self._retained: Callable[[], RetainedSpans | None] = lambda: None
        """A weak reference to the retained spans, which the callers of ``retain`` own; it returns
        None if there is no such caller.
        """
        self._current: dict[Key, weakref.ref[Any]] = {}
        """The spans that became current."""

    def retain(self) -> RetainedSpans:
        """Let ``find`` return spans also when they are over, as long as the caller has the result.

        These are the spans that are open now, and those that are noted later. One thread at a time
        may call it.
        """
        retained = self._retained()
        if retained is None:
            retained = RetainedSpans()
            self._retained = weakref.ref(
                retained
            )  # first, because other threads note spans meanwhile
            self._take_current()
            # The copy is atomic. Other threads add spans meanwhile.
            for key, current in self._current.copy().items():
                span = current()
                if span is not None and not _is_over(span):
                    _add(retained, key, span, _is_over)
        return retained

    def became_current(self, trace_id: int, span_id: int, span: object) -> None:
        """Note that a span became current, without retaining it."""
        if (trace_id, span_id) not in self._current:
            with contextlib.suppress(TypeError):  # a class without weak references
                _add(self._current, (trace_id, span_id), weakref.ref(span), _is_gone)

    def note(self, trace_id: int, span_id: int, span: object) -> None:
        """Note that ranges are recorded in this span, and retain it with the spans around it."""
        retained = self._retained()
        if retained is None:
            self.became_current(trace_id, span_id, span)
            return
        self._take_current()
        key: Key = trace_id, span_id
        # The span may be one with ids alone, made of a message that another process sent back. The
        # program's own span with these ids has a name and a parent.
        span = self._found_current(key) or span
        while span is not None and key not in retained:
            _add(retained, key, span, _is_over)
            parent = getattr(span, "parent", None)
            key = getattr(parent, "trace_id", 0), getattr(parent, "span_id", 0)
            span = self._found_current(key)

    def _take_current(self) -> None:
        """Read the ids of the spans that became current since the last time."""
        for reference in _native.take_current_spans():
            span = reference()
            if span is None:
                continue
            try:
                span_context = span.get_span_context()
            except Exception as error:  # the program's own class of spans
                if raised_by_signal_handler(error):
                    raise
                continue
            if span_context.is_valid:
                self.became_current(span_context.trace_id, span_context.span_id, span)

    def _found_current(self, key: Key) -> Any:
        current = self._current.get(key)
        return current() if current is not None else None

    def find(self, trace_id: int, span_id: int) -> Any:
        """The span with these ids; None if it isn't retained."""
        retained = self._retained()
        return retained.get((trace_id, span_id)) if retained is not None else None


def _is_over(span: object) -> bool:
    return getattr(span, "end_time", None) is not None


def _is_gone(current: weakref.ref[Any]) -> bool:
    span = current()
    return span is None or _is_over(span)


def _add(spans: dict[Key, Value], key: Key, span: Value, is_over: Callable[[Value], bool]) -> None:
    """Add a span; if there are too many, remove some of the oldest, first those that are over."""
    spans[key] = span
    if len(spans) > MAX_SEEN_SPANS:
        with contextlib.suppress(
            RuntimeError
        ):  # another thread adds a span meanwhile, and removes some
            oldest = list(islice(spans.items(), MAX_SEEN_SPANS // 2))
            over = [key for key, one in oldest if is_over(one)]
            for gone in [*over, *[key for key, one in oldest if not is_over(one)]][
                : MAX_SEEN_SPANS // 4
            ]:
                spans.pop(gone, None)


seen_spans = SeenSpans()
"""The spans of this process.

A forked child has its parent's, too, since it may still work inside them.
"""
