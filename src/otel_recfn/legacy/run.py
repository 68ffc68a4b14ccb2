"""A run of the legacy profiler: a capture that sees the rows of the threads that take part."""

from __future__ import annotations

import _thread
import os
import sys
import time
from collections.abc import MutableSequence
from contextlib import suppress
from functools import partial
from itertools import count

from otel_recfn import _native
from otel_recfn.batches.averages import key_averages
from otel_recfn.batches.merging import merged
from otel_recfn.batches.selection import Selected
from otel_recfn.callbacks.callback import INVALID_CALLBACK_HANDLE
from otel_recfn.legacy.config import START_PROFILE, ProfilerConfig, ProfilerState
from otel_recfn.legacy.cuda import CudaTimes, cuda_stubs
from otel_recfn.legacy.event import LegacyEvent
from otel_recfn.legacy.kinds import EventKind
from otel_recfn.legacy.lists import event_lists
from otel_recfn.legacy.thread_events import ThreadEventLists
from otel_recfn.model.events import ALL_SCOPES_MASK
from otel_recfn.recording.types import PROFILE_BUFFER_BYTES
from otel_recfn.session.capture import Capture
from otel_recfn.session.session import process_session
from otel_recfn.sinks.in_memory import EventStore
from otel_recfn.support.logs import log

MAX_EVENTS = 4_000_000
"""The maximum number of rows that are kept until they are consolidated. Beyond it the oldest are
dropped, which is logged.
"""
STOP_SECONDS = 10.0
_numbers = count(1)


class ProfilerRun:
    """A run, from ``start`` to ``stop``, at the latest until the last reference to it is dropped.

    Attributes:
        number: the number that its rows have; the process's first run has 1.
        cuda_times: the times of its ranges on the GPU.
        callback_handle: of the thread-local callback that it needs, INVALID_CALLBACK_HANDLE if it
            needs none.
        over: whether it was stopped.
        remote_events: lists of events of other processes, which are added when the run is
            consolidated.
    """

    def __init__(self, config: ProfilerConfig) -> None:
        self.config = config
        self.number = next(_numbers)
        self.cuda_times = CudaTimes(MAX_EVENTS)
        self._store = EventStore(MAX_EVENTS)
        selected = Selected(ALL_SCOPES_MASK, config.extras, profiler=self.number)
        self._capture = Capture(selected, [self._store], buffer_bytes=PROFILE_BUFFER_BYTES)
        self.callback_handle = INVALID_CALLBACK_HANDLE
        self.over = False
        self._pid = os.getpid()
        self._start_mark: LegacyEvent | None = None
        self.remote_events: list[list[LegacyEvent]] = []

    def start(self) -> None:
        """Record what happens in threads that take part."""
        if self.config.records_events:
            process_session().start(self._capture)

    def stop(self) -> None:
        """Record nothing more; open ranges stay without an end."""
        self.over = True
        process_session().stop(self._capture, STOP_SECONDS)

    def __del__(self) -> None:
        # Locks may be held as the last reference is dropped, so that another thread stops the run;
        # not one of threading.Thread, which takes locks itself.
        if not self.over and self.config.records_events and not sys.is_finalizing():
            # No thread can be started: the capture ends with the process, at the latest.
            with suppress(RuntimeError):
                _thread.start_new_thread(process_session().stop, (self._capture, STOP_SECONDS))

    def mark(self, name: str, include_cuda: bool = True) -> None:
        """Set a mark in the calling thread; in a CUDA run also on the GPU."""
        if self.config.state == ProfilerState.NVTX:
            cuda_stubs().mark(name)
        elif self.config.records_events:
            event_id = _native.mark(name)
            if include_cuda and self.config.state == ProfilerState.CUDA and cuda_stubs().enabled():
                self.cuda_times.record(EventKind.MARK, event_id)

    def mark_start(self) -> None:
        """The mark that times are relative to.

        It is kept beside the store, which drops the oldest events first.
        """
        self._start_mark = LegacyEvent(
            EventKind.MARK, START_PROFILE, _native.current_thread_id(), cpu_ns=time.time_ns()
        )
        self.mark(START_PROFILE, include_cuda=False)

    def consolidate(self) -> ThreadEventLists:
        """The events of every thread since the last time, then those that were added.

        The run forgets them.

        A range that is open stays until it has ended, or the run has.
        """
        process_session().flush(self._capture, STOP_SECONDS)
        rows = merged(self._store.take())
        remote, self.remote_events = self.remote_events, []
        lists = event_lists(rows, self.cuda_times, self.config)
        found: list[MutableSequence[LegacyEvent]] = [*self._lost_start(), *lists, *remote]
        return ThreadEventLists(
            found, partial(key_averages, rows), process_session().lost(self._capture)
        )

    def _lost_start(self) -> list[list[LegacyEvent]]:
        """The start mark if the store lost it: older events were dropped, or this is a forked
        child, which begins empty.
        """
        mark, self._start_mark = self._start_mark, None
        dropped = self._store.dropped
        if dropped:
            log.warning(
                "the profiler kept its newest %d events; %d older ones were dropped",
                MAX_EVENTS,
                dropped,
            )
        return [[mark]] if mark is not None and (dropped or os.getpid() != self._pid) else []
