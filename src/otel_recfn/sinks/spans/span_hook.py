"""The program's hook, which sees each span of a range before it is sent, and may rename it, change
its attributes, or drop it.

Children of a dropped span become those of the nearest span around it that is sent; what was folded
into it goes with it. Some spans are not dropped: parents of spans that were sent before, spans with
sums of their unit or with ``recfn.dropped``, and those that the program saw as its current span.
The first one that the program wants to drop all the same is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeAlias

from opentelemetry.attributes import BoundedAttributes

from otel_recfn.model.batch import Event
from otel_recfn.model.events import EventFlag
from otel_recfn.support.logs import GuardedLog
from otel_recfn.support.recent_entries import remember
from otel_recfn.support.texts import utf8_text

_logger = GuardedLog(logging.getLogger(__name__), {})

Hook: TypeAlias = Callable[[Event, dict[str, Any]], Any]
"""A function of a row and its span's attributes, which it may change.

Returns another name, False to drop the span, or None.
"""
MAX_REMEMBERED = 1 << 17
FOLDED_COUNT, FOLDED_NS = "recfn.folded.count", "recfn.folded.duration_ns"
"""The attributes for the number and time of ranges that were folded into the span."""
UNIT_FOLDED_COUNT = "recfn.unit.folded.count"
"""The attribute for the number of ranges of the whole unit that have no span of their own."""
FAILED_COUNT = "recfn.unit.failed.count"
"""The attribute for the number of ranges of the whole unit that an exception left, with a span
of their own or without.
"""
DROPPED = "recfn.dropped"
"""The attribute for the number of ranges and spans that this process lost since the last span
with it.
"""
_REPORTING = {UNIT_FOLDED_COUNT, FAILED_COUNT, DROPPED}


class SpanHook:
    """The program's function, and the spans that it dropped.

    A function that raises is not called again.
    """

    def __init__(self, function: Hook) -> None:
        self._function: Hook | None = function
        self._dropped: dict[int, int] = {}
        """The parents of dropped spans."""
        self._named: dict[int, None] = {}
        """The spans that sent ones have as their parent, and that haven't come themselves."""
        self._logged = False
        """Whether it was logged that a span stays which the function wanted to drop."""

    def for_other_trace(self) -> SpanHook:
        """The same function, for spans of the same ranges in another trace, where other spans
        are dropped or sent.
        """
        return SpanHook(self._call)

    def ask(
        self, event: Event, span_id: int, parent_id: int, name: str, attributes: dict[str, Any]
    ) -> tuple[str, int] | None:
        """The name and the parent's id of the span of a row, whose attributes the hook may
        change; None if it is dropped.
        """
        parent_id = self.sent_instead(parent_id)
        needed_for = self._needed_for(event, span_id, attributes)
        wanted = self._call(event, attributes)
        self._named.pop(span_id, None)
        if wanted is False and not needed_for:
            remember(self._dropped, span_id, parent_id, MAX_REMEMBERED)
            return None
        if wanted is False and not self._logged:
            self._logged = True
            text = (
                "otel-recfn: span_hook returned False for the span %r, which stays, as it %s; this"
                " is logged once"
            )
            _logger.warning(text, event.name, needed_for)
        remember(self._named, parent_id, None, MAX_REMEMBERED)
        return wanted if isinstance(wanted, str) else name, parent_id

    def _needed_for(self, event: Event, span_id: int, attributes: dict[str, Any]) -> str:
        """The reason why the span can't be dropped; empty if it can."""
        if span_id in self._named:
            return "is the parent of spans that were sent before it ended"
        if event.flags & EventFlag.EXPOSED:
            return "was the program's current span, below which it may have opened others"
        return (
            ""
            if _REPORTING.isdisjoint(attributes)
            else "has the sums of its request or step, or recfn.dropped"
        )

    def sent_instead(self, span_id: int) -> int:
        """The nearest span around a dropped one that wasn't dropped; any other span itself."""
        while span_id in self._dropped:
            span_id = self._dropped[span_id]
        return span_id

    def _call(self, event: Event, attributes: dict[str, Any]) -> Any:
        """The result of the function; the attributes are clean then."""
        if self._function is None:
            return None
        before = dict(attributes)
        try:
            wanted = self._function(event, attributes)
            # As the SDK does it with those of the program's spans.
            cleaned = BoundedAttributes(attributes=attributes)
            attributes.clear()
            attributes.update(cleaned)
            return utf8_text(wanted) if isinstance(wanted, str) else wanted
        except BaseException:  # this is a thread of ours, in which no signal handler runs
            self._function = None
            attributes.clear()
            attributes.update(before)
            _logger.exception(
                "otel-recfn: span_hook raised on the span %r and is not called any more", event.name
            )
            return None
