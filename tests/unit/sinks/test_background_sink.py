"""The background sink never makes its caller wait, stays bounded, and counts what it lost. Inner sinks here block on events."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from opentelemetry.instrumentation.utils import is_instrumentation_enabled

from batches import make_batch
from forked import in_child
from otel_recfn.batches.gaps import Gaps
from otel_recfn.model.batch import Batch
from otel_recfn.sinks import background_queue
from otel_recfn.sinks.background import MAX_ROWS, BackgroundSink
from otel_recfn.sinks.in_memory import InMemorySink
from otel_recfn.sinks.protocol import Sink

LONG_S = 20.0
"""More than any test needs; waiting this long is a failure."""


class Gated:
    """An inner sink whose ``write`` waits for the gate, and that writes down what it is asked."""

    name = "gated"

    def __init__(self, *, is_open: bool = True) -> None:
        self.gate, self.entered = threading.Event(), threading.Event()
        if is_open:
            self.gate.set()
        self.calls: list[str] = []
        self.rows = 0
        self.idled = threading.Event()
        self.closed = threading.Event()
        self.left_s = 0.0
        self.pace: Callable[[], None] = lambda: None

    def write(self, batch: Batch) -> None:
        self.rows += len(batch)
        self.entered.set()
        assert self.gate.wait(LONG_S)
        self.calls.append(f"write {len(batch)}")

    def flush(self, timeout_s: float) -> bool:
        self.calls.append("flush")
        return timeout_s > 0

    def close(self, timeout_s: float) -> None:
        self.calls.append("close")
        self.closed.set()

    def counters(self) -> Mapping[str, int]:
        return {"rows": self.rows}

    def after_fork_in_child(self) -> Sink | None:
        return Gated()

    def set_pace(self, pace: Callable[[], None]) -> None:
        self.pace = pace

    def note_gap(self) -> None:
        self.calls.append("gap")

    def idle(self) -> None:
        self.calls.append("idle")
        self.idled.set()

    def give_up(self, batches: Sequence[Batch], timeout_s: float) -> None:
        self.calls.append(f"give up {sum(map(len, batches))}")
        self.left_s = timeout_s


MakeSink = Callable[..., BackgroundSink]


@pytest.fixture
def in_background() -> Iterator[MakeSink]:
    """Makes background sinks, which end with the test."""
    made: list[tuple[BackgroundSink, Sink]] = []

    def make(inner: Sink, max_rows: int = MAX_ROWS, **keywords: Any) -> BackgroundSink:
        made.append((BackgroundSink(inner, max_rows, **keywords), inner))
        return made[-1][0]

    yield make
    for sink, inner in made:
        if isinstance(inner, Gated):
            inner.gate.set()
        sink.close(LONG_S)


@pytest.fixture
def hung() -> Gated:
    """A sink that hangs in its first write until the test is over."""
    return Gated(is_open=False)


def rows(count: int) -> Batch:
    return make_batch([{}] * count)


def assert_balanced(counters: Mapping[str, int]) -> None:
    lost = counters["queue_dropped"] + counters["queued"] + counters["abandoned"]
    assert counters["rows_received"] == counters["rows"] + lost


class TestPassingOn:
    def test_batches_arrive_in_order_on_a_thread_of_its_own(self, in_background: MakeSink) -> None:
        inner = Gated()
        sink = in_background(inner)
        for count in (1, 2, 3):
            sink.write(rows(count))
        assert sink.flush(LONG_S)
        sink.close(LONG_S)
        assert inner.calls == ["write 1", "write 2", "write 3", "flush", "close"]
        assert sink.counters() == {"rows": 6, "rows_received": 6, "queue_dropped": 0, "queued": 0, "abandoned": 0}

    def test_name_is_the_inner_one(self, in_background: MakeSink) -> None:
        sink = in_background(InMemorySink())
        assert sink.name == "in_memory"
        sink.close(LONG_S)

    def test_instrumentation_is_suppressed_there(self, in_background: MakeSink) -> None:
        enabled: list[bool] = []
        inner = Gated()
        inner.write = lambda batch: enabled.append(is_instrumentation_enabled())  # type: ignore[method-assign]
        sink = in_background(inner)
        sink.write(rows(1))
        sink.close(LONG_S)
        assert enabled == [False]
        assert is_instrumentation_enabled()

    def test_idle_is_told_once_after_a_pause(self, in_background: MakeSink, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(background_queue, "IDLE_S", 0.01)
        inner = Gated()
        sink = in_background(inner)
        sink.write(rows(1))
        assert inner.idled.wait(LONG_S)
        sink.close(LONG_S)
        assert inner.calls == ["write 1", "idle", "close"]


class TestBounds:
    def test_write_returns_while_the_inner_sink_hangs(self, in_background: MakeSink, hung: Gated) -> None:
        sink = in_background(hung, max_rows=10)
        sink.write(rows(4))
        assert hung.entered.wait(LONG_S)
        for _ in range(3):
            sink.write(rows(4))
        counters = sink.counters()
        assert (counters["rows"], counters["queued"], counters["queue_dropped"]) == (4, 4, 8)
        assert_balanced(counters)

    def test_gap_is_told_before_the_next_batch(self, in_background: MakeSink, hung: Gated) -> None:
        sink = in_background(hung, max_rows=5)
        sink.write(rows(4))
        assert hung.entered.wait(LONG_S)
        for count in (3, 1):
            sink.write(rows(count))
        hung.gate.set()
        sink.close(LONG_S)
        assert hung.calls == ["write 4", "gap", "write 1", "close"]

    def test_large_batch_is_taken_when_nothing_waits(self, in_background: MakeSink) -> None:
        inner = Gated()
        sink = in_background(inner, max_rows=2)
        sink.write(rows(50))
        sink.close(LONG_S)
        assert sink.counters()["rows"] == 50

    def test_announced_begins_take_room(self, in_background: MakeSink, hung: Gated) -> None:
        sink = in_background(hung, max_rows=5)
        sink.write(rows(1))
        assert hung.entered.wait(LONG_S)
        sink.write(make_batch([], opened=[{"event_id": 1}] * 3))
        sink.write(rows(2))
        assert sink.counters()["queue_dropped"] == 2


class TestTime:
    def test_flush_gives_up(self, in_background: MakeSink, hung: Gated) -> None:
        sink = in_background(hung)
        sink.write(rows(1))
        assert not sink.flush(0.01)

    def test_flush_of_nothing(self, in_background: MakeSink) -> None:
        inner = Gated()
        sink = in_background(inner, start=False)
        assert sink.flush(0)
        sink.close(LONG_S)
        assert inner.calls == ["close"]

    def test_close_gives_up_and_counts_what_is_left(self, in_background: MakeSink, hung: Gated) -> None:
        sink = in_background(hung)
        sink.write(rows(4))
        assert hung.entered.wait(LONG_S)
        sink.write(rows(3))
        sink.close(0.01)
        counters = sink.counters()
        assert (counters["rows"], counters["abandoned"], counters["queued"]) == (4, 3, 0)
        assert_balanced(counters)
        hung.gate.set()
        assert hung.closed.wait(LONG_S)
        assert hung.calls == ["write 4", "give up 0", "close"], "what was given up isn't written after all"
        assert sink.counters() == counters

    def test_shortly_before_the_end_what_is_left_is_given_up(
        self, in_background: MakeSink, hung: Gated, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        passed = [0.0]
        monotonic = time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: monotonic() + passed[0])
        sink = in_background(hung)
        sink.write(rows(4))
        assert hung.entered.wait(LONG_S)
        sink.write(rows(3))
        wait = sink._thread.wait_for_end

        def late(timeout_s: float) -> None:
            passed[0] = 2 * LONG_S - 1
            hung.gate.set()
            wait(timeout_s)

        monkeypatch.setattr(sink._thread, "wait_for_end", late)
        sink.close(2 * LONG_S)
        assert hung.calls == ["write 4", "give up 3", "close"]
        assert 0 < hung.left_s <= 1
        assert sink.counters()["abandoned"] == 3

    def test_write_after_close_is_dropped(self, in_background: MakeSink) -> None:
        sink = in_background(Gated())
        sink.close(LONG_S)
        sink.write(rows(2))
        assert sink.counters()["queue_dropped"] == 2

    def test_close_twice(self, in_background: MakeSink) -> None:
        inner = Gated()
        sink = in_background(inner)
        sink.close(LONG_S)
        sink.close(LONG_S)
        assert inner.calls == ["close"]
        assert not sink.flush(0) or sink.counters()["rows_received"] == 0


class TestShareOfTime:
    def test_sleeps_three_times_what_it_worked(self, in_background: MakeSink, monkeypatch: pytest.MonkeyPatch) -> None:
        clock, inner = iter([0.1, 0.1, 0.3, 0.3]), Gated()
        in_background(inner, start=False)
        slept: list[float | None] = []
        with monkeypatch.context() as patch:
            patch.setattr(threading.Event, "wait", lambda _event, timeout=None: slept.append(timeout))
            patch.setattr(time, "thread_time", lambda: next(clock))
            inner.pace()
            inner.pace()
        assert slept == pytest.approx([0.3, 0.6])

    def test_hurries_for_who_waits(self, in_background: MakeSink, monkeypatch: pytest.MonkeyPatch) -> None:
        inner = Gated()
        sink = in_background(inner, max_share=1e-9)
        sink.write(rows(1))
        started = time.monotonic()
        assert sink.flush(LONG_S)
        sink.write(rows(1))
        sink.close(LONG_S)
        assert time.monotonic() - started < LONG_S / 2
        assert inner.calls.count("write 1") == 2

    def test_is_given_to_the_inner_sink(self, in_background: MakeSink, hung: Gated) -> None:
        """Which thereby ends its work when it is given up."""

        def write(batch: Batch) -> None:
            hung.entered.set()
            assert hung.gate.wait(LONG_S)
            hung.pace()
            hung.calls.append("written after all")

        hung.write = write  # type: ignore[method-assign]
        sink = in_background(hung)
        sink.write(rows(1))
        assert hung.entered.wait(LONG_S)
        sink.close(0.0)
        hung.gate.set()
        assert hung.closed.wait(LONG_S)
        assert hung.calls == ["give up 0", "close"]


class TestErrors:
    def test_inner_error_reaches_the_next_write(self, in_background: MakeSink) -> None:
        inner = Gated()
        inner.write = _raise_broken  # type: ignore[method-assign]
        sink = in_background(inner)
        sink.write(rows(2))
        assert not sink.flush(LONG_S)
        assert inner.closed.wait(LONG_S)
        with pytest.raises(OSError, match="broken"):
            sink.write(rows(1))
        sink.close(LONG_S)
        assert inner.calls == ["close"]
        assert sink.counters()["abandoned"] == 2
        assert_balanced(sink.counters())


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
        sink.close(LONG_S)
        assert taken == [1, 2, 3]
        assert_balanced(sink.counters())

    def test_what_waits_for_memory_is_bounded(self, in_background: MakeSink, monkeypatch: pytest.MonkeyPatch) -> None:
        def failing(self: Gaps, batch: Batch) -> None:
            raise MemoryError

        monkeypatch.setattr(Gaps, "note", failing)
        sink = in_background(Gated())
        for _ in range(background_queue.MAX_ARRIVED + 3):
            sink.write(rows(2))
        assert sink.counters()["queue_dropped"] == 6
        sink.close(LONG_S)
        assert_balanced(sink.counters())


class TestFork:
    def test_child_gets_a_fresh_one_whose_thread_starts_late(self, in_background: MakeSink) -> None:
        sink = in_background(Gated(), max_rows=7)
        in_child(lambda: write_in_child(sink))

    def test_inner_sink_that_ends_with_the_fork(self, in_background: MakeSink) -> None:
        inner = Gated()
        inner.after_fork_in_child = lambda: None  # type: ignore[method-assign]
        sink = in_background(inner)
        in_child(lambda: ends_in_child(sink))


def write_in_child(sink: BackgroundSink) -> None:
    child = sink.after_fork_in_child()
    assert isinstance(child, BackgroundSink)
    assert threads() == []
    child.write(rows(1))
    assert threads() == ["otel-recfn gated"]
    child.close(LONG_S)
    sink.close(LONG_S)
    assert child.counters()["rows"] == 1


def ends_in_child(sink: BackgroundSink) -> None:
    assert sink.after_fork_in_child() is None
    sink.close(LONG_S)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("otel-recfn")]


def _raise_broken(batch: Batch) -> None:
    raise OSError("broken")


def test_a_thread_that_was_given_no_time_to_close_ends_all_the_same() -> None:
    queue = background_queue.WorkQueue(MAX_ROWS)
    queue.put(background_queue.Close())
    queue.end()  # before the thread comes by
    told: list[object] = []
    thread = threading.Thread(target=lambda: told.append(queue.next()), daemon=True)
    thread.start()
    thread.join(LONG_S)
    assert [type(task) for task in told] == [background_queue.Close]
