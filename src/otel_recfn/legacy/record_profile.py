"""Profiles of a block of code as trace files in the legacy profiler's own format, for
chrome://tracing.

Source: ``RecordProfile`` and ``writeProfilerEventsToStream`` in
torch/csrc/autograd/profiler_legacy.cpp.
"""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from otel_recfn.errors import ProfilerError
from otel_recfn.legacy.config import START_PROFILE, ProfilerConfig, ProfilerState
from otel_recfn.legacy.event import LegacyEvent
from otel_recfn.legacy.kinds import EventKind
from otel_recfn.legacy.profiler import disable_profiler_legacy, enable_profiler_legacy
from otel_recfn.sinks.chrome.encoder import microseconds
from otel_recfn.sinks.growing_file import GrowingFile
from otel_recfn.support.logs import log
from otel_recfn.support.texts import json_value

if TYPE_CHECKING:
    from typing_extensions import Self


class RecordProfile:
    """A profile of one thread, written to a file by ``close``, or when the last reference is
    dropped.

        with RecordProfile("steps.trace"):
            model(x)

    Args:
        out: a path, or a text stream, which stays open. An existing file is emptied at once, as by
            PyTorch, and keeps its permissions; a new one is for this user alone.

    Raises:
        ProfilerError: a profiler runs in this thread.
        OSError: the file can't be written.
    """

    def __init__(self, out: str | os.PathLike[str] | TextIO) -> None:
        enable_profiler_legacy(ProfilerConfig(ProfilerState.CPU))
        self._running = False
        self._pid = os.getpid()
        self._thread = threading.get_ident()
        self._out = out
        try:
            if isinstance(out, str | os.PathLike):
                # What can't be made is an error now, and not after the run.
                GrowingFile(out).close()
        except BaseException:
            disable_profiler_legacy()
            raise
        self._running = True

    def close(self) -> None:
        """Stop and write the trace. Never raises: errors are logged."""
        if not self._running:
            return
        self._running = False
        try:
            if threading.get_ident() != self._thread:  # that one may have a run of its own
                raise ProfilerError(
                    "a RecordProfile was dropped in another thread than it profiles: close it there"
                )
            events = list(chain.from_iterable(disable_profiler_legacy()))
            if os.getpid() == self._pid:  # a forked child leaves the file to its parent
                self._write(events)
        except Exception:
            log.exception("the profile could not be written")

    def _write(self, events: Sequence[LegacyEvent]) -> None:
        """Write the trace.

        The file is open only meanwhile, since the program may close descriptors that it doesn't
        know.
        """
        if not isinstance(self._out, str | os.PathLike):
            write_profiler_events_to_stream(self._out, events)
            return
        whole = io.StringIO()
        write_profiler_events_to_stream(whole, events)
        with closing(GrowingFile(self._out)) as file:
            file.show(whole.getvalue().encode())

    def __del__(self) -> None:
        # As in PyTorch, a profile that nobody holds any more ends and is written.
        if getattr(self, "_running", False) and not sys.is_finalizing():
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def write_profiler_events_to_stream(out: TextIO, events: Sequence[LegacyEvent]) -> None:
    """Write a list with a complete event for each range of a run, as soon as its pop is read.

    The stream encodes as UTF-8.

    Times are microseconds since the mark ``__start_profile``, with three decimals. A ProfilerError
    if that is missing, or a pop has no push before it.
    """
    start = next((event for event in events if event.name == START_PROFILE), None)
    if start is None:
        raise ProfilerError(
            f"Could not find {START_PROFILE} mark; pass the events of all threads, from the"
            " beginning of the run"
        )
    separator = "[\n"
    for push, pop in _ranges(events):
        out.write(separator + _complete_event(start, push, pop))
        separator = ",\n"
    out.write("\n]\n" if separator == ",\n" else "[\n]\n")


def _ranges(events: Iterable[LegacyEvent]) -> Iterator[tuple[LegacyEvent, LegacyEvent]]:
    """Pushes with their pops: of this process by event id, of others by handle and node.

    Processes number their ranges alike, and a range of this one may begin and end as two nodes.
    """
    pushes: dict[object, LegacyEvent] = {}
    for event in events:
        key = event.event_id or (event.handle, event.node_id)
        if event.kind == EventKind.PUSH_RANGE:
            pushes[key] = event
        elif event.kind == EventKind.POP_RANGE:
            if key not in pushes:
                raise ProfilerError(
                    f"Unmatched pop event: handle {event.handle} of node {event.node_id} on thread"
                    f" {event.thread_id}; pass the events of all threads, each thread's in their"
                    " order"
                )
            yield pushes.pop(key), event


def _complete_event(start: LegacyEvent, push: LegacyEvent, pop: LegacyEvent) -> str:
    begin = microseconds(push.cpu_ns - start.cpu_ns)
    duration = microseconds(pop.cpu_ns - push.cpu_ns)
    return (
        f'{{"name":{json_value(push.name)},"ph":"X","ts":{begin},"dur":{duration},'
        f'"tid":{push.thread_id},"pid":"CPU Functions","args":{{}}}}'
    )
