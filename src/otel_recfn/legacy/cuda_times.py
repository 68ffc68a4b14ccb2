"""When ranges and marks of a run came to pass on a GPU."""

from __future__ import annotations

from collections.abc import Iterable

from otel_recfn.legacy.cuda import CudaRecord, cuda_stubs
from otel_recfn.legacy.event import LegacyEvent
from otel_recfn.legacy.event_kind import EventKind


class CudaTimes:
    """CUDA events by what they time, until that becomes an event of the run. Methods may be called from any thread.

    Args:
        most: moments kept; what comes beyond is not timed, as its range wouldn't be kept either.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._records: dict[tuple[EventKind, int], CudaRecord] = {}

    def __len__(self) -> int:
        return len(self._records)

    def record(self, kind: EventKind, key: int) -> None:
        """It happens now on the current stream: the push or pop of the range with handle ``key``, or the mark with that id."""
        if len(self._records) < self._most:
            self._records[kind, key] = cuda_stubs().record()

    def put(self, kind: EventKind, key: int, record: CudaRecord) -> None:
        """It happened then."""
        if len(self._records) < self._most:
            self._records[kind, key] = record

    def take(self, kind: EventKind, key: int) -> CudaRecord | None:
        """What was recorded for it; None where nothing was."""
        return self._records.pop((kind, key), None)


def time_memory(events: Iterable[LegacyEvent]) -> None:
    """Give changes of memory without a time on the GPU the newest one that their thread had then; none where it had none yet.

    They have none of their own where this PyTorch lacks what takes it natively, or stubs in Python are registered: PyTorch's
    allocator of GPU memory holds its lock as it reports a change, and whoever waits for that lock may have the GIL.
    """
    device, newest = -1, None
    for event in events:
        if event.kind == EventKind.MEMORY_ALLOC and event.cuda_event is None:
            event.device, event.cuda_event = device, newest
        elif event.cuda_event is not None:
            device, newest = event.device, event.cuda_event
