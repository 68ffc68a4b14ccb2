"""What follows from what outputs say: ancestors, enclosing slices, and a span's own time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from output_values import Slice, Span


def ancestors(events: Mapping[int, Any], event_id: int) -> Iterator[int]:
    """The ranges around a range, the innermost first."""
    parent = events[event_id].parent
    while parent in events:
        yield parent
        parent = events[parent].parent


def ancestors_in_span(events: Mapping[int, Any], event_id: int) -> Iterator[int]:
    """The ranges around a range up to the next span of the program's, the innermost first."""
    while events[event_id].root != event_id and events[event_id].parent in events:
        event_id = events[event_id].parent
        yield event_id


def enclosing_slices(slices: Mapping[int, Slice]) -> dict[int, int]:
    """Of each slice that nests, the innermost one of its thread that it lies in; 0 if there is
    none.

    By event id.
    """
    found: dict[int, int] = {}
    by_thread = defaultdict[int, list[int]](list)
    for event_id, each in slices.items():
        if each.nests:
            by_thread[each.thread].append(event_id)
    for event_ids in by_thread.values():
        event_ids.sort(key=lambda one: (slices[one].start_ns, -slices[one].end_ns, one))
        open_ids: list[int] = []
        for event_id in event_ids:
            while open_ids and slices[open_ids[-1]].end_ns < slices[event_id].end_ns:
                open_ids.pop()
            while (
                open_ids
                and slices[open_ids[-1]].end_ns
                <= slices[event_id].start_ns
                < slices[event_id].end_ns
            ):
                open_ids.pop()
            found[event_id] = open_ids[-1] if open_ids else 0
            open_ids.append(event_id)
    return found


def union_ns(stretches: Iterable[tuple[int, int]]) -> int:
    """The length of what lies in one of the stretches at least."""
    total = 0
    reached = 0
    for start_ns, end_ns in sorted(stretches):
        total += max(0, end_ns - max(start_ns, reached))
        reached = max(reached, end_ns)
    return total


def self_ns_by_backend(span: Span, children: Iterable[Span]) -> int:
    """A span's own time as Jaeger, Tempo and Grafana reckon it: its length less the union of its
    children.
    """
    inside = [
        (max(each.start_ns, span.start_ns), min(each.end_ns, span.end_ns)) for each in children
    ]
    return span.duration_ns - union_ns([(start, end) for start, end in inside if start < end])
