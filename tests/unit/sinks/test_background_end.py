"""Background sinks at their end: flush and close return in time, errors are told once, children of forks get their own."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest
from gated import LONG_S, Gated, MakeSink, assert_balanced, rows

from forked import in_child
from otel_recfn.model.batch import Batch
from otel_recfn.sinks.background import BackgroundSink


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


class TestErrors:
    @pytest.mark.parametrize("error", [OSError("broken"), SystemExit("broken")], ids=repr)
    def test_inner_error_reaches_the_next_write(self, in_background: MakeSink, error: BaseException) -> None:
        inner = Gated()
        inner.write = partial(_raise, error)  # type: ignore[method-assign]
        sink = in_background(inner)
        sink.write(rows(2))
        assert not sink.flush(LONG_S)
        assert inner.closed.wait(LONG_S)
        with pytest.raises(type(error), match="broken"):
            sink.write(rows(1))
        sink.close(LONG_S)
        assert inner.calls == ["close"]
        assert sink.counters()["abandoned"] == 2
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


def _raise(error: BaseException, batch: Batch) -> None:
    raise error
