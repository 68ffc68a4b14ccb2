"""Which spans an exporter has still to get, because it got children of theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext

Id = tuple[int, int]
"""Of its trace and its own: while it is open a range may have a span in another trace, too."""
NOTHING: Id = (0, 0)
MOST = 1 << 16
"""Of more the oldest are forgotten: most are spans of other processes, which never come."""


class AwaitedParents:
    """Of one exporter. Used under a lock of the caller's."""

    def __init__(self) -> None:
        self._ids: dict[Id, None] = {}
        """Parents of spans that were exported, which weren't themselves."""
        self._held_back: dict[Id, ReadableSpan] = {}

    def note(self, spans: Sequence[ReadableSpan]) -> list[Id]:
        """These are exported. Returns which parents are awaited from now on."""
        own, above = {_id(span) for span in spans}, {_parent_id(span) for span in spans}
        new = [one for one in above - own if one != NOTHING and one not in self._ids]
        for one in own:
            self._ids.pop(one, None)
        self._ids.update(dict.fromkeys(new))
        for oldest in list(islice(self._ids, max(0, len(self._ids) - MOST))):
            del self._ids[oldest]
        return new

    def forget(self, ids: Sequence[Id]) -> None:
        """The export failed whose children these are the parents of."""
        for one in ids:
            self._ids.pop(one, None)

    @property
    def holds_back(self) -> bool:
        """Whether some come only when they are needed."""
        return bool(self._held_back)

    def hold_back(self, spans: Iterable[ReadableSpan]) -> None:
        """These come only when they are needed."""
        self._held_back.update([(_id(span), span) for span in spans])

    def needed(self, spans: Sequence[ReadableSpan], may_be_left_out: Callable[[ReadableSpan], bool]) -> list[ReadableSpan]:
        """Those of the spans without which others would have no parent. What is left out now comes when it is needed."""
        found = []
        for span in spans:
            if may_be_left_out(span):
                self._held_back[_id(span)] = span
            else:
                found.append(span)
        above = [*[_parent_id(span) for span in found], *[one for one in self._held_back if one in self._ids]]
        while above:
            parent = self._held_back.pop(above.pop(), None)
            if parent is not None:
                found.append(parent)
                above.append(_parent_id(parent))
        return found


def _id(span: ReadableSpan) -> Id:
    return _id_of(span.get_span_context())


def _parent_id(span: ReadableSpan) -> Id:
    return _id_of(span.parent)


def _id_of(context: SpanContext | None) -> Id:
    return (context.trace_id, context.span_id) if context is not None else NOTHING
