"""A run that torch.profiler and we observed, in terms in which both can be compared."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from kineto import shapes_of
from same_in_each_thread import assert_same_in_each_thread

from otel_recfn.model.batch import Event
from otel_recfn.model.events import EventSource, RecordScope

AROUND_A_NODE = "autograd::engine::evaluate_function: "
IN_TORCH = (EventSource.TORCH, EventSource.RECORD_FUNCTION)
"""Whose ranges PyTorch has: its own, and those that are told to it."""
DTYPES = {"float": "float32", "double": "float64", "long int": "int64", "int": "int32", "bool": "bool"}


class Seen(NamedTuple):
    """What both say about a range."""

    name: str
    scope: int
    sequence_nr: int
    forward_thread_id: int
    ended_elsewhere: bool
    parent: int
    """Position of the enclosing range among the thread's ranges, -1 at top level."""
    shapes: list[Any]
    dtypes: list[Any]


Threads = dict[int, list[Seen]]
"""By logical thread id, in the order of the begins."""


class Run:
    """An observed run: our events, and the profile."""

    def __init__(self, ours: list[Event], profile: Any) -> None:
        self.events = ours
        self.ours = _ours(ours)
        self.theirs = _theirs(profile.profiler.kineto_results)

    def compare(self) -> None:
        """Thread by thread, event by event; and no other ranges."""
        assert_same_in_each_thread(self.ours, self.theirs)
        assert self.names() == Counter(one.name for ranges in self.theirs.values() for one in ranges)

    def names(self) -> Counter[str]:
        return Counter(one.name for ranges in self.ours.values() for one in ranges)

    def scopes(self) -> set[RecordScope]:
        return {RecordScope(one.scope) for ranges in self.ours.values() for one in ranges}


def _ours(events: list[Event]) -> Threads:
    """Without the ranges that PyTorch knows nothing of; what is inside them belongs to the range around them."""
    by_id = {event.event_id: event for event in events}

    def known_parent(event: Event) -> int:
        parent = by_id.get(event.parent)
        while parent is not None and parent.source not in IN_TORCH:
            parent = by_id.get(parent.parent)
        return parent.event_id if parent is not None else 0

    threads: Threads = {}
    positions = {0: -1}
    for event in sorted(events, key=lambda event: event.event_id):
        if event.source not in IN_TORCH:
            continue
        ranges = threads.setdefault(event.thread_id, [])
        positions[event.event_id] = len(ranges)
        place = (event.thread_id != event.end_thread_id, positions[known_parent(event)])
        ids = (event.sequence_nr, event.forward_thread_id if event.sequence_nr >= 0 else 0)
        shapes, dtypes = json.loads(event.shapes or "[]"), json.loads(event.dtypes or "[]")
        ranges.append(Seen(event.name, event.scope, *ids, *place, shapes, dtypes))
    return threads


def _theirs(results: Any) -> Threads:
    ranges = sorted(results.events(), key=lambda event: event.correlation_id())  # ids count the begins of each thread
    parents = dict(_parents(results.experimental_event_tree()))
    threads: Threads = {}
    positions = {0: -1}
    for event in ranges:
        thread = threads.setdefault(event.start_thread_id(), [])
        positions[event.correlation_id()] = len(thread)
        around = event.name().startswith(AROUND_A_NODE)
        ids = (-1, 0) if around else (event.sequence_nr(), event.fwd_thread_id())
        place = (event.start_thread_id() != event.end_thread_id(), positions[parents[event.correlation_id()]])
        shapes, dtypes = shapes_of(event), _dtypes(event.dtypes())
        thread.append(Seen(event.name(), event.scope(), *ids, *place, shapes, dtypes))
    return threads


def _parents(nodes: Iterable[Any], parent: int = 0) -> Iterator[tuple[int, int]]:
    for node in nodes:
        yield node.correlation_id, parent
        yield from _parents(node.children, node.correlation_id)


def _dtypes(named: list[str]) -> list[str]:
    return [DTYPES.get(name, name) for name in named]


def without_inputs(run: Run) -> Run:
    """For profiles that did not record them."""
    for threads in (run.ours, run.theirs):
        for thread, ranges in threads.items():
            threads[thread] = [one._replace(shapes=[], dtypes=[]) for one in ranges]
    return run


def with_comparable_dtypes(run: Run) -> Run:
    """torch.profiler says TensorList without what is in it, and tells lists of numbers from none; we do the opposite."""

    def comparable(dtype: Any) -> Any:
        return "TensorList" if isinstance(dtype, list) else "" if dtype == "ScalarList" else dtype

    for threads in (run.ours, run.theirs):
        for thread, ranges in threads.items():
            threads[thread] = [one._replace(dtypes=[comparable(dtype) for dtype in one.dtypes]) for one in ranges]
    return run
