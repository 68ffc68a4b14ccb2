"""The tree of modules against a model, range by range: where calls, backward passes and what is
in no module are shown.
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
from otel_recfn.batches.build_tree import build_tree
from otel_recfn.batches.measures import find_nesting, self_times
from otel_recfn.batches.module_tree import MAX_DERIVATIVES
from otel_recfn.model.batch import Batch, Event
from otel_recfn.model.events import EventFlag, EventSource, RecordScope

pytestmark = pytest.mark.one_python

AROUND = "autograd::engine::evaluate_function: "
ACCUMULATES = AROUND + "torch::autograd::AccumulateGrad"
OPERATOR, CALL, NODE, OTHER = "operator", "call", "node", "other"

row = st.tuples(
    st.sampled_from([OPERATOR, CALL, CALL, NODE, NODE, OTHER]),
    st.integers(0, 4),  # how many rows before it its parent stands; 0 for none
    st.integers(0, 1 << 40) | st.integers(0, 9),
    st.integers(0, 3),  # of a node: how many operators began after its forward one
    st.sampled_from(
        ["Optimizer.step#SGD.step", ACCUMULATES, AROUND + "MulBackward0", AROUND + "MulBackward0"]
    ),
    st.sampled_from([("Net_0", ""), ("Fc_0", "fc"), ("Fc_1", "fc2")]),
    st.sampled_from([MAIN_THREAD, MAIN_THREAD, MAIN_THREAD, WORKER_THREAD]),
    st.sampled_from([EventFlag.NONE, EventFlag.NONE, EventFlag.NONE, EventFlag.ASYNC]),
)
programs = st.lists(row, max_size=5) | st.lists(row, min_size=12, max_size=30)


def batch_of(drawn: list[tuple[Any, ...]]) -> Batch:
    """The rows begin one after the other, and end in the order of their ids from behind."""
    rows: list[dict[str, Any]] = []
    for number, (kind, above, spent, ago, name, module, track, flags) in enumerate(drawn, 1):
        around = rows[number - 1 - above] if 0 < above < number else None
        columns: dict[str, Any] = {
            "event_id": track.number << 40 | number,
            "thread": track,
            "parent": around["event_id"] if around else 0,
            "start_ns": 10_000 + number,
            "end_ns": 10_000 + number + spent,
            "name": {OPERATOR: "aten::mul", NODE: "MulBackward0", OTHER: name}.get(
                kind, f"nn.Module: {module[0]}"
            ),
            "flags": flags,
        }
        if kind == OPERATOR:
            columns["sequence_nr"] = number
        if kind == CALL:
            columns |= {"source": EventSource.MODULE, "module": module[1]}
        if kind == NODE:
            operators = [one for one in rows if "sequence_nr" in one and "scope" not in one]
            forward = (
                operators[-1 - ago]
                if ago < len(operators)
                else {"sequence_nr": 1000, "thread": MAIN_THREAD}
            )
            numbers = {
                "sequence_nr": forward["sequence_nr"],
                "forward_thread_id": forward["thread"].thread_id,
            }
            columns |= {"scope": RecordScope.BACKWARD_FUNCTION, **numbers}
        rows.append(columns)
    return make_batch(rows[::-1])


class Model:
    """Where each range is shown, by definition."""

    def __init__(self, batch: Batch) -> None:
        self.events = {
            event.event_id: event
            for event in sorted(batch.events(), key=lambda event: event.start_ns)
        }
        self._operators = {
            (e.thread_id, e.sequence_nr): e for e in self.events.values() if e.name == "aten::mul"
        }
        self._forward = {
            id_: found
            for id_, event in self.events.items()
            if (found := self._operator_of(event)) is not None
        }
        # The first counts.
        for event in reversed(
            [event for event in self.events.values() if event.name == "MulBackward0"]
        ):
            around = self._parent(event)
            if (
                event.event_id in self._forward
                and around is not None
                and around.name.startswith(AROUND)
            ):
                self._forward[around.event_id] = self._forward[event.event_id]

    def _operator_of(self, event: Event) -> Event | None:
        is_node = event.name == "MulBackward0"
        return (
            self._operators.get((event.forward_thread_id, event.sequence_nr)) if is_node else None
        )

    def _parent(self, event: Event) -> Event | None:
        return self.events.get(event.parent)

    def _line(self, event: Event) -> str:
        if event.name == ACCUMULATES:
            return "(accumulation of gradients)"
        if event.name.startswith("Optimizer."):
            return event.name
        return (
            event.module or re.sub(r"_\d+$", "", event.name.removeprefix("nn.Module: "))
            if event.source == EventSource.MODULE
            else ""
        )

    def _innermost(self, event: Event | None) -> Event | None:
        """The line or node that it is or lies in; None for what an optimizer's closure does."""
        while event is not None and not self._is_line_or_node(event):
            if self._in_closure(event):
                return None
            event = self._parent(event)
        return event

    def _is_line_or_node(self, event: Event) -> bool:
        return bool(self._line(event)) or event.event_id in self._forward

    def _in_closure(self, event: Event) -> bool:
        around = self._parent(event)
        while around is not None and not self._is_line_or_node(around):
            around = self._parent(around)
        with_gradients = event.sequence_nr >= 0 or event.name.startswith(AROUND)
        return with_gradients and around is not None and around.name.startswith("Optimizer.")

    def _inside(self, call: Event) -> Event | None:
        """The line or node around a call that isn't an optimizer's."""
        inside = self._innermost(self._parent(call))
        while inside is not None and inside.name.startswith("Optimizer."):
            inside = self._innermost(self._parent(inside))
        return inside

    def shown_in(self, event: Event) -> tuple[Event | None, bool]:
        """The line that a range counts to, and whether by way of a forward range."""
        found = first = self._innermost(event)
        for _ in range(MAX_DERIVATIVES + 1):  # a forward range may lie in its own node
            if found is None or self._line(found):
                return found, found is not first
            found = self._innermost(self._forward[found.event_id])
        return None, True

    def path(self, event: Event) -> tuple[str, ...]:
        is_call = event.source == EventSource.MODULE
        before = self._before(event)
        around = self._around(event) if is_call else None
        name = (
            self._line(before)
            if is_call and self._is_again(event) and before is not None
            else self._line(event)
        )
        return (*(self.path(around) if around is not None else ()), name)

    def _is_again(self, call: Event) -> bool:
        """Whether a backward pass made the call, or one that it lies in."""
        inside = self._inside(call)
        if inside is None:
            return False
        return not self._line(inside) or (
            inside.source == EventSource.MODULE and self._is_again(inside)
        )

    def _before(self, call: Event) -> Event | None:
        """The last call of that module before, of those that no backward pass made."""
        earlier = [
            one
            for one in self.events.values()
            if one.name == call.name and one.start_ns < call.start_ns
        ]
        return next((one for one in reversed(earlier) if not self._is_again(one)), None)

    def _around(self, call: Event) -> Event | None:
        inside = self._inside(call)
        if inside is None or self._line(inside):
            return inside
        before = self._before(call)
        return self._inside(before) if before is not None else self.shown_in(inside)[0]


@dataclass
class Expected:
    """Of a path; times in nanoseconds."""

    total: int = 0
    own: int = 0
    backward: int = 0
    durations: list[int] = field(default_factory=list)

    def as_listed(self) -> tuple[int, ...]:
        longest = max([0, *self.durations])
        return (
            len(self.durations),
            self.total,
            self.own,
            self.backward,
            min(self.durations, default=0),
            longest,
        )


def expected_of(batch: Batch) -> dict[tuple[str, ...], tuple[int, ...]]:
    model = Model(batch)
    own = dict(
        zip(batch.event_id.tolist(), self_times(batch, find_nesting(batch)).tolist(), strict=True)
    )
    found: dict[tuple[str, ...], Expected] = defaultdict(Expected)
    for event in model.events.values():
        line, moved = model.shown_in(event)
        path = model.path(line) if line is not None else ("(in no module)",)
        spent = own[event.event_id]
        found[path].own += spent
        if line is event or line is None:
            found[path].durations.append(event.duration_ns if line is event else spent)
        for depth in range(1, len(path) + 1):
            found[path[:depth]].total += spent
            found[path[:depth]].backward += spent * moved
    return {path: one.as_listed() for path, one in found.items()}


def listed(batch: Batch) -> dict[tuple[str, ...], tuple[int, ...]]:
    found = {}
    for one in build_tree(batch, "module"):
        times = (
            one.cpu_time_total,
            one.self_cpu_time_total,
            one.backward_cpu_time_total,
            one.cpu_time_min,
            one.cpu_time_max,
        )
        found[one.path] = (one.count, *(round(us * 1000) for us in times))
    return found


@given(drawn=programs)
def test_every_range_counts_once_where_it_belongs(drawn: list[tuple[Any, ...]]) -> None:
    batch = batch_of(drawn)
    assert listed(batch) == expected_of(batch)


def test_more_derivatives_than_anybody_takes_are_in_no_module() -> None:
    """Each node's forward operator lies in the node before."""
    rows: list[dict[str, Any]] = [
        {"event_id": 1, "name": "aten::mul", "sequence_nr": 1, "end_ns": 11_000}
    ]
    for number in range(2, 30, 2):
        link = {
            "scope": RecordScope.BACKWARD_FUNCTION,
            "sequence_nr": number - 1,
            "forward_thread_id": MAIN_THREAD.thread_id,
        }
        rows.append({"event_id": number, "name": "MulBackward0", **link})
        rows.append(
            {
                "event_id": number + 1,
                "parent": number,
                "name": "aten::mul",
                "sequence_nr": number + 1,
            }
        )
    (line,) = build_tree(
        make_batch([{"thread": MAIN_THREAD, "start_ns": 10_000, **one} for one in rows[::-1]]),
        "module",
    )
    assert (line.name, line.count) == ("(in no module)", len(rows))
