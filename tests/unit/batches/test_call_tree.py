"""Call trees against a simple model, row by row: paths, counts, times; by name and thread;
printed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.batches import MAIN_THREAD, WORKER_THREAD, make_batch
from otel_recfn.batches.averages import key_averages
from otel_recfn.batches.build_tree import By, build_tree
from otel_recfn.batches.call_tree import CallTree
from otel_recfn.batches.measures import find_nesting, self_times
from otel_recfn.errors import SettingError
from otel_recfn.model.batch import Batch, Event
from otel_recfn.model.events import EventFlag, RowKind

pytestmark = pytest.mark.one_python

row = st.tuples(
    st.sampled_from([MAIN_THREAD, MAIN_THREAD, WORKER_THREAD]),
    # How many rows above, of those that are there, its parent stands; 0 for none.
    st.integers(0, 8),
    st.integers(0, 1 << 40) | st.integers(0, 9),
    st.sampled_from(["a", "b"]),
    st.sampled_from([EventFlag.NONE, EventFlag.NONE, EventFlag.ASYNC]),
    st.sampled_from([RowKind.RANGE, RowKind.RANGE, RowKind.RANGE, RowKind.MARK]),
    st.sampled_from([-1, 0, 5]),
)
forests = st.lists(row, max_size=25)


def batch_of(drawn: list[tuple[Any, ...]]) -> Batch:
    """Parents stand behind their children, as they end after them."""
    rows: list[dict[str, Any]] = []
    for number, (track, above, spent, name, flags, kind, worked) in enumerate(drawn):
        event_id = track.number << 40 | (number + 1)
        around = rows[number - above] if 0 < above <= number else None
        rows.append(
            {
                "event_id": event_id,
                "thread": track,
                "parent": around["event_id"]
                if around is not None and around["kind"] == RowKind.RANGE
                else 0,
                "start_ns": 10_000,
                "end_ns": 10_000 + spent,
                "name": name,
                "flags": flags,
                "kind": kind,
                "cpu_time_ns": worked,
            }
        )
    return make_batch(rows[::-1])


@dataclass
class Expected:
    """Of a path; times in nanoseconds."""

    total: int = 0
    own: int = 0
    waited: int = 0
    durations: list[int] = field(default_factory=list)

    def as_listed(self) -> tuple[Any, ...]:
        shortest = min(self.durations, default=0)
        longest = max(self.durations, default=0)
        return len(self.durations), self.total, self.own, shortest, max(longest, 0), self.waited


def paths_of(batch: Batch, by: By) -> dict[tuple[str, ...], Expected]:
    """By definition, range by range."""
    events = {event.event_id: event for event in batch.events() if event.kind == RowKind.RANGE}
    own = dict(
        zip(batch.event_id.tolist(), self_times(batch, find_nesting(batch)).tolist(), strict=True)
    )
    found: dict[tuple[str, ...], Expected] = defaultdict(Expected)
    for event in events.values():
        path = path_of(event, events, by)
        spent = event.end_ns - event.start_ns
        found[path].own += own[event.event_id]
        found[path].total += spent
        found[path].durations.append(spent)
        found[path].waited += max(0, spent - event.cpu_time_ns) if event.cpu_time_ns >= 0 else 0
        if by == "thread" and len(path) == 2:
            found[path[:1]].total += spent
    return found


def path_of(event: Event, events: dict[int, Event], by: By) -> tuple[str, ...]:
    around = events.get(event.parent)
    if by == "thread" and (around is None or around.thread != event.thread):
        thread = event.thread
        return (f"{thread.name or 'thread'} {thread.thread_id}", event.name)
    return (*(path_of(around, events, by) if around is not None else ()), event.name)


def as_listed(found: dict[tuple[str, ...], Expected]) -> dict[tuple[str, ...], tuple[Any, ...]]:
    return {path: expected.as_listed() for path, expected in found.items()}


def listed(tree: CallTree) -> dict[tuple[str, ...], tuple[Any, ...]]:
    return {
        one.path: (
            one.count,
            *(
                round(us * 1000)
                for us in (
                    one.cpu_time_total,
                    one.self_cpu_time_total,
                    one.cpu_time_min,
                    one.cpu_time_max,
                    one.wait_time_total,
                )
            ),
        )
        for one in tree
    }


@pytest.mark.parametrize("by", ["name", "thread"])
@given(drawn=forests)
def test_every_path_has_its_ranges(drawn: list[tuple[Any, ...]], by: By) -> None:
    batch = batch_of(drawn)
    assert listed(build_tree(batch, by)) == as_listed(paths_of(batch, by))


SMALL = [
    (MAIN_THREAD, 0, 9_000, "step", EventFlag.NONE, RowKind.RANGE, -1),
    (MAIN_THREAD, 1, 5_000, "b", EventFlag.NONE, RowKind.RANGE, -1),
    (MAIN_THREAD, 2, 2_000, "a", EventFlag.NONE, RowKind.RANGE, -1),
    (MAIN_THREAD, 2, 1_000, "inner", EventFlag.NONE, RowKind.RANGE, -1),
]


def names_shown(text: str) -> list[str]:
    """The names in a table, with their indentation."""
    return [found[0] for line in text.splitlines()[3:] if (found := re.match(r" *[^- ]+", line))]


class TestText:
    def test_paths_are_indented_and_the_longest_come_first(self) -> None:
        assert names_shown(str(build_tree(batch_of(SMALL)))) == ["step", "  b", "    inner", "  a"]

    def test_of_few_rows_those_with_the_most_time_are_shown_with_what_they_lie_in(self) -> None:
        text = build_tree(batch_of(SMALL)).table(row_limit=2)
        assert names_shown(text) == ["step", "  b", "2"]
        assert text.endswith("2 more paths are not shown\n")

    def test_no_deeper_than_asked(self) -> None:
        assert names_shown(build_tree(batch_of(SMALL)).table(max_depth=2))[:-1] == [
            "step",
            "  b",
            "  a",
        ]

    @pytest.mark.parametrize(
        "asked", [{"row_limit": "3"}, {"max_depth": "3"}, {"max_depth": 0}, {"row_limit": True}]
    )
    def test_what_is_no_number_is_refused(self, asked: dict[str, Any]) -> None:
        with pytest.raises(SettingError, match="is not allowed; allowed: a whole number from"):
            build_tree(batch_of(SMALL)).table(**asked)

    def test_another_word_for_by_is_refused(self) -> None:
        with pytest.raises(
            SettingError,
            match="by='scope' is no way to group a tree; allowed: name, thread, module",
        ):
            build_tree(batch_of(SMALL), "scope")  # type: ignore[arg-type]


@pytest.mark.parametrize(("worked_ms", "names_shown"), [(2, True), (8, False), (None, False)])
def test_tables_show_waiting_where_it_is_most_of_something(
    worked_ms: int | None, names_shown: bool
) -> None:
    worked = {} if worked_ms is None else {"cpu_time_ns": worked_ms * 1_000_000}
    batch = make_batch([{"name": "call", "start_ns": 5, "end_ns": 5 + 10_000_000, **worked}])
    for table in (str(build_tree(batch)), key_averages(batch).table()):
        assert ("Waited" in table, "8.000ms" in table) == (names_shown, names_shown)
