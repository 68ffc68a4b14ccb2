"""What the tests of the legacy profiler are written in."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from otel_recfn import record_function
from otel_recfn.legacy import ProfilerConfig, ProfilerDisableOptions, ProfilerState, ThreadEventLists
from otel_recfn.legacy.config import EventKind
from patience import PATIENCE_S

CPU = ProfilerConfig(ProfilerState.CPU)
KEEP = ProfilerDisableOptions(cleanup_tls_state=False, consolidate=True)


def words(lists: ThreadEventLists) -> list[list[str]]:
    """Per thread, what happened, with the names of ranges also at their pops."""
    names = {event.handle: event.name for events in lists for event in events if event.kind == EventKind.PUSH_RANGE}
    return [[f"{event.kind_str} {names.get(event.handle, event.name)}" for event in events] for events in lists]


def ranges(lists: ThreadEventLists) -> set[str]:
    """Names of what began."""
    return {event.name for events in lists for event in events if event.kind == EventKind.PUSH_RANGE}


def in_a_thread(work: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result(PATIENCE_S)


def record(name: str) -> None:
    with record_function(name):
        pass
