"""Background sinks at their end: flush and close return in time, errors are told once, children of forks get their own."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest
from gated import Gated, MakeSink, lost, rows

from forked import in_child
from otel_recfn.model.batch import Batch
from otel_recfn.sinks.background import BackgroundSink
from patience import PATIENCE_S


class TestTime:
    def test_flush_gives_up(self, in_background: MakeSink, hung: Gated) -> None:
        sink = in_background(hung)
        sink.write(rows(1))
        assert not sink.flush(0.01)

    def test_flush_of_nothing(self, in_background: MakeSink) -> None:
        inner = Gated()
        sink = in_background(inner, start=False)
        assert sink.flush(0)
        sink.close(PATIENCE_S)
        assert inner.calls == ["close"]

    def test_close_gives_up_and_counts_what_is_left(self, in_background: MakeSink, hung: Gated) -> None:
        sink = in_background(hung)
        sink.write(rows(4))
        assert hung.entered.wait(PATIENCE_S)
        sink.write(rows(3))
        sink.close(0.01)
        assert lost(sink) == {"shutdown": 7}
        hung.gate.set()
        assert hung.closed.wait(PATIENCE_S)
        assert hung.calls == ["write 4", "close"], "what was given up isn't written after all"
        assert lost(sink) == {"shutdown": 3}

    def test_write_after_close_is_dropped(self, in_background: MakeSink) -> None:
        sink = in_background(Gated())
        sink.close(PATIENCE_S)
        sink.write(rows(2))
        assert lost(sink) == {"queue_full": 2}

    def test_close_twice(self, in_background: MakeSink) -> None:
        inner = Gated()
        sink = in_background(inner)
        sink.close(PATIENCE_S)
        sink.close(PATIENCE_S)
        assert inner.calls == ["close"]
        assert sink.flush(0)


class TestErrors:
    @pytest.mark.parametrize("error", [MemoryError(), SystemError("error return without exception set")], ids=repr)
    def test_a_batch_that_finds_no_memory_is_dropped_and_the_next_comes(
        self, in_background: MakeSink, hung: Gated, caplog: pytest.LogCaptureFixture, error: Exception
    ) -> None:
        write, failures = hung.write, iter(range(3))

        def failing(batch: Batch) -> None:
            if next(failures, None) is None:
                return write(batch)
            raise error

        hung.write = failing  # type: ignore[method-assign]
        hung.gate.set()
        sink = in_background(hung)
        for count in (5, 4, 3, 1, 1):
            sink.write(rows(count))
        assert sink.flush(PATIENCE_S)
        assert hung.calls == ["gap", "gap", "gap", "write 1", "write 1", "flush"]
        assert lost(sink) == {"error": 12}
        assert [record.getMessage() for record in caplog.records] == [
            "the sink 'gated' found no memory; it goes on, and what it misses is counted as dropped"
        ]

    @pytest.mark.parametrize("error", [OSError("broken"), SystemExit("broken")], ids=repr)
    def test_inner_error_reaches_the_next_write(
        self, in_background: MakeSink, caplog: pytest.LogCaptureFixture, error: BaseException
    ) -> None:
        inner = Gated()
        inner.write = partial(_raise, error)  # type: ignore[method-assign]
        sink = in_background(inner)
        sink.write(rows(2))
        assert not sink.flush(PATIENCE_S)
        assert inner.closed.wait(PATIENCE_S)
        with pytest.raises(type(error), match="broken"):
            sink.write(rows(1))
        sink.close(PATIENCE_S)
        assert caplog.records == []  # whoever wrote tells of it
        assert inner.calls == ["close"]
        assert lost(sink) == {"error": 2}

    @pytest.mark.parametrize("step", ["write", "flush", "close"])
    @pytest.mark.parametrize("error", [KeyboardInterrupt("broken"), GeneratorExit("broken")], ids=repr)
    def test_what_ends_threads_ends_the_sink_alone(
        self, in_background: MakeSink, caplog: pytest.LogCaptureFixture, error: BaseException, step: str
    ) -> None:
        inner = Gated()
        setattr(inner, step, partial(_raise, error))
        sink = in_background(inner)
        sink.write(rows(2))
        began = time.monotonic()
        assert sink.flush(PATIENCE_S) is (step == "close")
        sink.close(PATIENCE_S)
        assert time.monotonic() - began < PATIENCE_S
        assert f"{type(error).__name__}: broken" in caplog.text
        assert lost(sink) == ({"error": 2} if step == "write" else {})

    @pytest.mark.parametrize("step", ["write", "close"])
    def test_inner_error_that_no_write_comes_for_is_told_at_the_end(
        self, in_background: MakeSink, caplog: pytest.LogCaptureFixture, step: str
    ) -> None:
        inner = Gated()
        setattr(inner, step, partial(_raise, OSError("broken")))
        sink = in_background(inner)
        sink.write(rows(2))
        sink.close(PATIENCE_S)
        sink.close(PATIENCE_S)
        [record] = caplog.records
        assert record.getMessage() == "the sink 'gated' failed, and what it had not taken is lost: OSError('broken')"


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
    child.close(PATIENCE_S)
    sink.close(PATIENCE_S)
    assert lost(child) == {}


def ends_in_child(sink: BackgroundSink) -> None:
    assert sink.after_fork_in_child() is None
    sink.close(PATIENCE_S)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("otel-recfn")]


def _raise(error: BaseException, *_: object) -> None:
    raise error
