"""The events of a batch's rows, in a list for each thread.

    rows of a thread ──► moments: begins and ends in order ──► events, a block at a time

The second step is taken when a list is first read.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import numpy as np

from otel_recfn.legacy.config import ProfilerConfig
from otel_recfn.legacy.cuda import CudaTimes
from otel_recfn.legacy.event import LegacyEvent
from otel_recfn.legacy.event_maker import EventMaker
from otel_recfn.legacy.kinds import EventKind
from otel_recfn.legacy.moments import thread_moments
from otel_recfn.legacy.thread_events import ThreadEvents
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import ORDINAL_BITS


def event_lists(batch: Batch, cuda_times: CudaTimes, config: ProfilerConfig) -> list[ThreadEvents]:
    """A list for each thread that has rows, in the order in which the threads first recorded."""
    maker = EventMaker(batch, cuda_times, config)
    lists = []
    number = batch.event_id >> np.uint64(ORDINAL_BITS)
    for each in np.unique(number):
        moments = thread_moments(batch, np.flatnonzero(number == each))
        lists.append(ThreadEvents(partial(maker.events, moments)))
        if len(cuda_times):
            _add_times_to_memory(lists[-1])
    return lists


def _add_times_to_memory(events: Iterable[LegacyEvent]) -> None:
    """Give changes of memory the newest time on the GPU that their thread had then, if it had one.

    They have none of their own: PyTorch's allocator of GPU memory holds its lock as it reports a
    change, and whoever waits for that lock may have the GIL.
    """
    device = -1
    newest = None
    for event in events:
        if event.kind == EventKind.MEMORY_ALLOC:
            event.device = device
            event.cuda_event = newest
        elif event.cuda_event is not None:
            device = event.device
            newest = event.cuda_event
