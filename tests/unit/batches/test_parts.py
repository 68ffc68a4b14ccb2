"""Parts of a batch: all of it, once, in the order of time, as drains would have given it."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from otel_recfn import _native
from otel_recfn.batches import parts
from otel_recfn.batches.parts import Parts
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventSource, RecordScope
from otel_recfn.recording.recorder import Recorder, recorder
from otel_recfn.recording.types import DEFAULT_BUFFER_BYTES

RANGES = 200
ALL_SCOPES = (1 << len(RecordScope)) - 1


def begin(name: str) -> int:
    return _native.begin(name, RecordScope.USER_SCOPE, EventSource.RECORD_FUNCTION)


def record() -> None:
    for _ in range(RANGES):
        outer = begin("outer")
        _native.end(begin("inner"))
        _native.end(outer)


@pytest.fixture
def batch() -> Batch:
    """What two threads recorded, with a range that stays open."""
    recording: Recorder = recorder
    recording.start(ALL_SCOPES, DEFAULT_BUFFER_BYTES)
    try:
        other = threading.Thread(target=record)
        other.start()
        begin("stays open")
        record()
        other.join()
        return recording.drain()
    finally:
        recording.stop()
        recording.drain(close_open=True)


def test_a_small_batch_is_one_part(batch: Batch) -> None:
    few = batch.take(slice(10))
    [part] = Parts().cut(few)
    assert part is few


@pytest.mark.parametrize("weight", [1, 1000, 20_000])
def test_parts_are_all_of_a_batch_in_the_order_of_time(
    batch: Batch, weight: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("FIRST_WEIGHT", weight), ("MIN_WEIGHT", weight), ("PART_SECONDS", 0.0)):
        monkeypatch.setattr(parts, name, value)
    found = list(Parts().cut(batch))
    assert len(found) > 1
    ids = np.concatenate([part.event_id for part in found])
    assert sorted(ids) == sorted(batch.event_id)
    assert len(set(ids.tolist())) == len(ids)
    announced = [opened.event_id for part in found for opened in part.opened]
    assert sorted(announced) == sorted(opened.event_id for opened in batch.opened)
    open_now: set[int] = set()
    until_ns = 0
    for part in found:
        assert all(part.end_ns > until_ns)
        open_now |= {opened.event_id for opened in part.opened}
        assert set(part.root.tolist()) <= open_now, (
            "a range comes after its outermost one was announced"
        )
        until_ns = max([until_ns, *part.end_ns.tolist()])
