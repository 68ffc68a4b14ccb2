"""When ranges and marks of a run came to pass on a GPU."""

from __future__ import annotations

from otel_recfn.legacy.cuda import CudaRecord, cuda_stubs
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

    def take(self, kind: EventKind, key: int) -> CudaRecord | None:
        """What was recorded for it; None where nothing was."""
        return self._records.pop((kind, key), None)
