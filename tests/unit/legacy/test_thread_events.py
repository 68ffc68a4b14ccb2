"""Events that are made when they are looked at: a list like any other, whose making costs nothing before."""

from __future__ import annotations

import copy
import pickle
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from otel_recfn.legacy import (
    EventKind,
    LegacyEvent,
    ThreadEvents,
)


def event(number: int) -> LegacyEvent:
    return LegacyEvent(EventKind.MARK, str(number), 1, event_id=number)


class Maker:
    """Makes events, and knows how often it was asked for them."""

    def __init__(self, count: int) -> None:
        self.count, self.asked = count, 0

    def __call__(self) -> list[LegacyEvent]:
        self.asked += 1
        return [event(number) for number in range(self.count)]


def lazy(count: int) -> tuple[ThreadEvents, Maker]:
    maker = Maker(count)
    return ThreadEvents.made_by(count, maker), maker


def test_events_are_made_when_one_is_looked_at() -> None:
    events, maker = lazy(10)
    assert len(events) == 10
    assert maker.asked == 0
    assert events[5] is events[5]
    assert events[-1].event_id == 9
    assert [each.event_id for each in events] == list(range(10))
    assert maker.asked == 1


CHANGES = {
    "append": lambda each: each.append(event(90)),
    "insert": lambda each: each.insert(2, event(91)),
    "set": lambda each: each.__setitem__(-1, event(92)),
    "set slice": lambda each: each.__setitem__(slice(1, 3), [event(93)]),
    "delete": lambda each: each.__delitem__(0),
    "pop": lambda each: each.pop(),
    "reverse": lambda each: each.reverse(),
    "sort": lambda each: each.sort(key=lambda one: -one.event_id),
    "extend": lambda each: each.extend([event(94)]),
    "clear": lambda each: each.clear(),
    "change": lambda each: setattr(each[0], "name", "changed"),
}
READS = {
    "slice": lambda each: each[1:7:2],
    "backwards": lambda each: each[::-1],
    "index": lambda each: each.index(event(1)),
    "count": lambda each: each.count(event(1)),
    "in": lambda each: event(2) in each,
    "add": lambda each: each + [event(3)],  # noqa: RUF005 - the operator
    "added": lambda each: [event(3)] + each,  # noqa: RUF005 - the operator
    "unpacked": lambda each: [*each],
    "reversed": lambda each: list(reversed(each)),
    "sorted": lambda each: sorted(each, key=lambda one: one.name),
    "copy": lambda each: list(copy.deepcopy(each)),
    "pickle": lambda each: list(pickle.loads(pickle.dumps(each))),
    "repr": repr,
    "bool": bool,
}


def outcome(act: Any, events: Any) -> Any:
    try:
        return act(events)
    except (IndexError, ValueError) as error:
        return type(error)


@given(count=st.integers(0, 13), acts=st.lists(st.sampled_from([*CHANGES, *READS]), max_size=6))
def test_it_is_as_a_list(count: int, acts: list[str]) -> None:
    events, plain = lazy(count)[0], [event(number) for number in range(count)]
    for name in acts:
        act = CHANGES.get(name) or READS[name]
        assert outcome(act, events) == outcome(act, plain)
    assert events == plain
    assert plain == events
    assert not events != plain  # noqa: SIM202 - the other operator
