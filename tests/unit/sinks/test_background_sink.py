"""The background sink never makes its caller wait, stays bounded, and counts what it lost. Inner sinks here block on events."""

from __future__ import annotations

from gated import Gated, MakeSink, lost, rows
from opentelemetry.instrumentation.utils import is_instrumentation_enabled

from batches import make_batch
from otel_recfn.model.batch import Batch
from otel_recfn.sinks.in_memory import InMemorySink
from patience import PATIENCE_S


class TestPassingOn:
    def test_batches_arrive_in_order_on_a_thread_of_its_own(self, in_background: MakeSink) -> None:
        inner = Gated()
        sink = in_background(inner)
        for count in (1, 2, 3):
            sink.write(rows(count))
        assert sink.flush(PATIENCE_S)
        sink.close(PATIENCE_S)
        assert inner.calls == ["write 1", "write 2", "write 3", "flush", "close"]
        assert lost(sink) == {}

    def test_name_is_the_inner_one(self, in_background: MakeSink) -> None:
        sink = in_background(InMemorySink())
        assert sink.name == "in_memory"
        sink.close(PATIENCE_S)

    def test_instrumentation_is_suppressed_there(self, in_background: MakeSink) -> None:
        enabled: list[bool] = []
        inner = Gated()
        inner.write = lambda batch: enabled.append(is_instrumentation_enabled())  # type: ignore[method-assign]
        sink = in_background(inner)
        sink.write(rows(1))
        sink.close(PATIENCE_S)
        assert enabled == [False]
        assert is_instrumentation_enabled()


class ToldOfOpenRanges(Gated):
    """Writes down of how many ranges it is told."""

    def write_open(self, ranges: Batch) -> None:
        self.calls.append(f"open {len(ranges)}")


class TestOpenRanges:
    def test_they_are_told_behind_what_was_written_before(self, in_background: MakeSink) -> None:
        inner = ToldOfOpenRanges()
        sink = in_background(inner)
        sink.write(rows(1))
        sink.write_open(rows(2))
        sink.write(rows(3))
        assert sink.flush(PATIENCE_S)
        assert inner.calls == ["write 1", "open 2", "write 3", "flush"]
        assert lost(sink) == {}

    def test_while_the_inner_sink_hangs_only_the_first_wait(self, in_background: MakeSink) -> None:
        inner = ToldOfOpenRanges(is_open=False)
        sink = in_background(inner)
        sink.write(rows(1))
        assert inner.entered.wait(PATIENCE_S)
        for count in range(2, 100):
            sink.write_open(rows(count))
        inner.gate.set()
        assert sink.flush(PATIENCE_S)
        sink.write_open(rows(100))
        assert sink.flush(PATIENCE_S)
        assert inner.calls == ["write 1", "open 2", "flush", "open 100", "flush"]

    def test_a_sink_that_does_not_ask_is_not_told(self, in_background: MakeSink) -> None:
        inner = Gated()
        sink = in_background(inner)
        sink.write(rows(1))
        sink.write_open(rows(2))
        assert sink.flush(PATIENCE_S)
        assert inner.calls == ["write 1", "flush"]


class TestBounds:
    def test_write_returns_while_the_inner_sink_hangs(self, in_background: MakeSink, hung: Gated) -> None:
        sink = in_background(hung, max_rows=10)
        sink.write(rows(4))
        assert hung.entered.wait(PATIENCE_S)
        for _ in range(3):
            sink.write(rows(4))
        assert lost(sink) == {"queue_full": 8}

    def test_gap_is_told_before_the_next_batch(self, in_background: MakeSink, hung: Gated) -> None:
        sink = in_background(hung, max_rows=5)
        sink.write(rows(4))
        assert hung.entered.wait(PATIENCE_S)
        for count in (3, 1):
            sink.write(rows(count))
        hung.gate.set()
        sink.close(PATIENCE_S)
        assert hung.calls == ["write 4", "gap", "write 1", "close"]

    def test_large_batch_is_taken_when_nothing_waits(self, in_background: MakeSink) -> None:
        inner = Gated()
        sink = in_background(inner, max_rows=2)
        sink.write(rows(50))
        sink.close(PATIENCE_S)
        assert inner.calls == ["write 50", "close"]

    def test_announced_begins_take_room(self, in_background: MakeSink, hung: Gated) -> None:
        sink = in_background(hung, max_rows=5)
        sink.write(rows(1))
        assert hung.entered.wait(PATIENCE_S)
        sink.write(make_batch([], opened=[{"event_id": 1}] * 3))
        sink.write(rows(2))
        assert lost(sink) == {"queue_full": 2}
