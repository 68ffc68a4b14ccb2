"""The legacy profiler's own trace format: a list with one complete event per range, for chrome://tracing.

Source: ``writeProfilerEventsToStream``. Times are microseconds since the mark ``__start_profile``, with three decimals.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO

from otel_recfn.legacy.errors import ProfilerError
from otel_recfn.legacy.event import LegacyEvent
from otel_recfn.legacy.event_kind import EventKind
from otel_recfn.support.json_text import json_string

START_PROFILE = "__start_profile"
STOP_PROFILE = "__stop_profile"


def write_profiler_events_to_stream(out: TextIO, events: Sequence[LegacyEvent]) -> None:
    """Write the ranges of a run, each as soon as its pop is read. The stream encodes as UTF-8.

    Raises:
        ProfilerError: the mark ``__start_profile`` is missing, or a pop has no push before it.
    """
    start = next((event for event in events if event.name == START_PROFILE), None)
    if start is None:
        raise ProfilerError(
            f"Could not find {START_PROFILE} mark; pass the events of all threads, from the beginning of the run"
        )
    separator = "[\n"
    for push, pop in _ranges(events):
        out.write(separator + _complete_event(start, push, pop))
        separator = ",\n"
    out.write("\n]\n" if separator == ",\n" else "[\n]\n")


def _ranges(events: Iterable[LegacyEvent]) -> Iterator[tuple[LegacyEvent, LegacyEvent]]:
    """Pushes with their pops, by handle and node: processes number their ranges alike."""
    pushes: dict[tuple[int, int], LegacyEvent] = {}
    for event in events:
        key = event.handle, event.node_id
        if event.kind == EventKind.PUSH_RANGE:
            pushes[key] = event
        elif event.kind == EventKind.POP_RANGE:
            if key not in pushes:
                raise ProfilerError(
                    f"Unmatched pop event: handle {event.handle} of node {event.node_id} on thread {event.thread_id}; "
                    "pass the events of all threads, each thread's in their order"
                )
            yield pushes.pop(key), event


def _complete_event(start: LegacyEvent, push: LegacyEvent, pop: LegacyEvent) -> str:
    times = f'"ts":{_microseconds(push.cpu_ns - start.cpu_ns)},"dur":{_microseconds(pop.cpu_ns - push.cpu_ns)}'
    return f'{{"name":{json_string(push.name)},"ph":"X",{times},"tid":{push.thread_id},"pid":"CPU Functions","args":{{}}}}'


def _microseconds(ns: int) -> str:
    whole, rest = divmod(abs(ns), 1000)
    return f"{'-' if ns < 0 else ''}{whole}.{rest:03}"
