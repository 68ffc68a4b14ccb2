"""Where a background sink, or the one behind it, finds no memory: batches wait, in order, and what is lost is counted."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from gated import Gated, MakeSink, assert_balanced, rows

from batches import make_batch
from otel_recfn.batches.gaps import Gaps
from otel_recfn.model.batch import Batch
from otel_recfn.sinks import background_queue, background_worker, waiting_batches
from own_threads import threads_of
from patience import PATIENCE_S


class TestMemory:
    def test_a_batch_that_there_was_no_memory_for_is_queued_before_the_next(
        self, in_background: MakeSink, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        taken: list[int] = []
        inner = Gated()
        inner.write = lambda batch: taken.extend(batch.event_id.tolist())  # type: ignore[method-assign]
        inner.counters = lambda: {"rows": len(taken)}  # type: ignore[method-assign]
        note, times = Gaps.note, iter([True, True, False, False, False])

        def failing(self: Gaps, batch: Batch) -> None:
            if next(times):
                raise MemoryError
            note(self, batch)

        monkeypatch.setattr(Gaps, "note", failing)
        sink = in_background(inner)
        for event_id in (1, 2, 3):
            sink.write(make_batch([{"event_id": event_id}]))
            assert_balanced(sink.counters())
        sink.close(PATIENCE_S)
        assert taken == [1, 2, 3]
        assert_balanced(sink.counters())

    def test_what_waits_for_memory_is_bounded(self, in_background: MakeSink, monkeypatch: pytest.MonkeyPatch) -> None:
        def failing(self: Gaps, batch: Batch) -> None:
            raise MemoryError

        monkeypatch.setattr(Gaps, "note", failing)
        monkeypatch.setattr(waiting_batches, "MAX_ROWS", 0)
        sink = in_background(Gated())
        for _ in range(waiting_batches.ALWAYS_TAKEN + 3):
            sink.write(rows(2))
        assert sink.counters()["queue_dropped"] == 6
        sink.close(PATIENCE_S)
        assert_balanced(sink.counters())


class Roomy(Gated):
    """Says when it has room, and is given a batch again that it found no memory for."""

    def __init__(self, *, room: bool = True) -> None:
        super().__init__()
        self.room, self.refusals, self.asked = room, 0, threading.Event()
        self.left: list[int] = []

    def has_room(self) -> bool:
        self.asked.set()
        return self.room

    def write(self, batch: Batch) -> None:
        if self.refusals:
            self.refusals -= 1
            raise MemoryError
        super().write(batch)

    def give_up(self, batches: Sequence[Batch], timeout_s: float) -> None:
        self.left = [len(batch) for batch in batches]


@pytest.fixture
def without_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_worker, "PAUSE_WITHOUT_MEMORY_S", 0.001)


@pytest.mark.usefixtures("without_pause")
class TestRoom:
    """A batch that the queue has handed on may be what earlier rows lie in: the inner sink gets it, or what is needed of it."""

    def test_a_batch_waits_until_the_inner_sink_has_room(self, in_background: MakeSink) -> None:
        inner = Roomy(room=False)
        sink = in_background(inner, max_share=1.0)
        sink.write(rows(1))
        assert inner.asked.wait(PATIENCE_S)
        sink.write(rows(2))
        assert sink.counters()["queued"] == 3
        inner.room = True
        assert sink.flush(PATIENCE_S)
        assert inner.calls == ["write 1", "write 2", "flush"]
        assert sink.counters()["queue_dropped"] == 0

    def test_a_batch_that_the_inner_sink_did_not_take_is_given_it_again(self, in_background: MakeSink) -> None:
        inner = Roomy()
        inner.refusals = 2
        sink = in_background(inner, max_share=1.0)
        sink.write(rows(1))
        assert sink.flush(PATIENCE_S)
        assert inner.calls == ["write 1", "flush"]
        assert_balanced(sink.counters())

    @pytest.mark.parametrize("step", ["counters", "note_gap"])
    def test_memory_that_ends_before_the_inner_sink_has_a_batch_costs_nothing(
        self, in_background: MakeSink, hung: Gated, step: str
    ) -> None:
        sink = in_background(hung, max_rows=5, max_share=1.0)
        sink.write(rows(4))
        assert hung.entered.wait(PATIENCE_S)
        for count in (3, 1):  # a gap, and a batch behind it
            sink.write(rows(count))
        call, failures = getattr(hung, step), iter([True, True])

        def failing() -> object:
            if threading.current_thread() in threads_of(sink) and next(failures, False):
                raise MemoryError
            return call()

        setattr(hung, step, failing)
        hung.gate.set()
        assert sink.flush(PATIENCE_S)
        assert hung.calls == ["write 4", "gap", "write 1", "flush"]
        assert (hung.rows, sink.counters()["queue_dropped"]) == (5, 3)

    def test_a_batch_that_waits_is_the_first_of_what_is_given_up(self, in_background: MakeSink) -> None:
        inner = Roomy(room=False)
        sink = in_background(inner, max_share=1.0)
        for count in (1, 2, 3):
            sink.write(rows(count))
        assert inner.asked.wait(PATIENCE_S)
        sink.close(0.05)
        assert inner.closed.wait(PATIENCE_S)
        assert inner.left == [1, 2, 3]
        assert_balanced(sink.counters())

    def test_what_finds_memory_only_behind_the_end_is_given_up(
        self, in_background: MakeSink, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        take, starved = background_queue.WorkQueue._take_arrived, threading.Event()
        starved.set()

        def taken(self: background_queue.WorkQueue) -> None:
            if threading.current_thread() is not threading.main_thread() or not starved.is_set():
                take(self)

        monkeypatch.setattr(background_queue.WorkQueue, "_take_arrived", taken)
        inner = Roomy()
        sink = in_background(inner, max_share=1.0)
        sink.write(rows(3))
        sink.close(PATIENCE_S)
        assert inner.left == [3]

    def test_it_has_room_while_it_is_too_slow(self, in_background: MakeSink, hung: Gated) -> None:
        sink = in_background(hung, max_rows=1)
        for _ in range(4 * waiting_batches.ALWAYS_TAKEN):
            sink.write(rows(2))
        assert sink.has_room()
        assert sink.counters()["queue_dropped"] > 0

    def test_it_has_none_while_there_is_no_memory_for_queueing(
        self, in_background: MakeSink, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def failing(self: Gaps, batch: Batch) -> None:
            raise MemoryError

        monkeypatch.setattr(waiting_batches, "MAX_ROWS", 0)
        sink = in_background(Gated())
        with monkeypatch.context() as patch:
            patch.setattr(Gaps, "note", failing)
            for _ in range(waiting_batches.ALWAYS_TAKEN // 2):
                assert sink.has_room()
                sink.write(rows(1))
            assert not sink.has_room()
        assert sink.has_room()
