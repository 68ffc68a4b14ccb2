"""CUDA without a GPU: events count milliseconds, one per record."""

from __future__ import annotations

import time

from otel_recfn.legacy.cuda import CudaRecord


class FakeCudaEvent:
    """In place of ``torch.cuda.Event``."""

    def __init__(self, milliseconds: float) -> None:
        self.milliseconds = milliseconds
        self.synchronized = False

    def record(self) -> None:
        """It has happened."""

    def synchronize(self) -> None:
        self.synchronized = True

    def elapsed_time(self, end_event: FakeCudaEvent) -> float:
        assert self.synchronized
        assert end_event.synchronized
        return end_event.milliseconds - self.milliseconds


class FakeCuda:
    """In place of ``TorchCuda``; keeps what it was told."""

    def __init__(self, *, enabled: bool = True) -> None:
        self.device = 0
        self.events: list[FakeCudaEvent] = []
        self.calls: list[str] = []
        self._enabled = enabled

    def enabled(self) -> bool:
        return self._enabled

    def record(self) -> CudaRecord:
        event = FakeCudaEvent(float(len(self.events)))
        self.events.append(event)
        return CudaRecord(self.device, event, time.time_ns())

    def elapsed_us(self, begin: FakeCudaEvent, end: FakeCudaEvent) -> float:
        begin.synchronize()
        end.synchronize()
        return begin.elapsed_time(end) * 1000

    def mark(self, name: str) -> None:
        self.calls.append(f"mark {name}")

    def range_push(self, name: str) -> None:
        self.calls.append(f"push {name}")

    def range_pop(self) -> None:
        self.calls.append("pop")
