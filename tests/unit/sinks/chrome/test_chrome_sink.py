"""The Chrome trace's sink never makes its caller wait, stays bounded, and counts what it lost.

Writers here block on events.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.instrumentation.utils import is_instrumentation_enabled

from helpers.batches import make_batch, open_for_long
from helpers.timeouts import PATIENCE_S
from otel_recfn.model.batch import Batch
from otel_recfn.model.columns import ROW_BYTES
from otel_recfn.sinks.chrome.sink import BATCH_ROWS, ChromeTraceSink

Make = Callable[..., ChromeTraceSink]


class Gated:
    """A writer whose ``write`` waits for the gate, and that writes down what it is asked."""

    def __init__(
        self, *, is_open: bool = True, errors: tuple[BaseException | None, ...] = ()
    ) -> None:
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.closed = threading.Event()
        self.checked = threading.Event()
        if is_open:
            self.gate.set()
        self.calls: list[str] = []
        self.errors = list(errors)
        self.failed = 0
        self.was_enabled = False

    def write(self, batch: Batch) -> None:
        self.was_enabled = is_instrumentation_enabled()
        self.entered.set()
        assert self.gate.wait(PATIENCE_S)
        error = self.errors.pop(0) if self.errors else None
        open_part = f" open {len(batch.long_open)}" if batch.long_open is not None else ""
        self.calls.append(f"{repr(error) if error else len(batch)}{open_part}")
        if error is not None:
            raise error

    def check(self) -> None:
        self.checked.set()

    def close(self, lost: int = 0) -> None:
        self.calls.append(f"close {lost}")
        self.closed.set()

    def after_fork_in_child(self) -> Gated:
        return Gated()


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes sinks with room for some batches of some rows, which end with the test."""
    made: list[tuple[ChromeTraceSink, Gated]] = []

    def make(writer: Gated, batches: int = 100, rows: int = 1000) -> ChromeTraceSink:
        given: Any = writer
        made.append((ChromeTraceSink(given, ROW_BYTES * (BATCH_ROWS * batches + rows)), writer))
        return made[-1][0]

    yield make
    for sink, writer in made:
        writer.gate.set()
        sink.close(PATIENCE_S)


@pytest.fixture
def hung() -> Gated:
    """A writer that hangs in its first write until the test is over."""
    return Gated(is_open=False)


def rows(count: int) -> Batch:
    return make_batch([{}] * count)


def lost(sink: ChromeTraceSink) -> dict[str, int]:
    """What it lost, by reason, without zeros."""
    return {
        name.removeprefix("dropped."): count for name, count in sink.counters().items() if count
    }


def test_batches_arrive_in_order_on_a_thread_that_is_not_instrumented(make: Make) -> None:
    writer = Gated()
    sink = make(writer)
    for batch in (rows(1), rows(2), open_for_long(rows(7)), make_batch([]), rows(3)):
        sink.write(batch)
    assert sink.flush(PATIENCE_S)
    assert writer.calls == ["1", "2", "0 open 7", "3"]
    assert not writer.was_enabled
    sink.close(PATIENCE_S)
    sink.close(PATIENCE_S)
    assert writer.calls[4:] == ["close 0"]
    assert sink.flush(0)
    sink.write(rows(2))
    assert lost(sink) == {"queue_full": 2}


def test_the_file_is_looked_after_while_nothing_is_recorded(make: Make) -> None:
    writer = Gated()
    make(writer).start()
    assert writer.checked.wait(PATIENCE_S)
    assert writer.calls == []


class TestBounds:
    def test_what_does_not_fit_is_dropped_and_the_file_says_so(
        self, make: Make, hung: Gated
    ) -> None:
        sink = make(hung, batches=2, rows=6)
        sink.write(rows(4))
        assert hung.entered.wait(PATIENCE_S)
        for count in (3, 1, 3):
            sink.write(rows(count))
        assert lost(sink) == {"queue_full": 6}
        assert not sink.flush(0.01)
        hung.gate.set()
        sink.close(PATIENCE_S)
        assert hung.calls == ["4", "1", "close 6"]

    def test_a_large_batch_is_taken_when_nothing_waits(self, make: Make) -> None:
        writer = Gated()
        sink = make(writer, batches=1, rows=2)
        sink.write(rows(50))
        sink.close(PATIENCE_S)
        assert writer.calls == ["50", "close 0"]

    @pytest.mark.parametrize(
        "other", [make_batch([], opened=[{"event_id": 1}] * 3), open_for_long(rows(3))]
    )
    def test_what_is_announced_or_open_takes_room(
        self, make: Make, hung: Gated, other: Batch
    ) -> None:
        sink = make(hung, batches=3, rows=5)
        sink.write(rows(1))
        assert hung.entered.wait(PATIENCE_S)
        sink.write(rows(2))
        sink.write(other)
        assert lost(sink) == {"queue_full": 2}

    def test_close_gives_up_and_counts_what_is_left(self, make: Make, hung: Gated) -> None:
        sink = make(hung)
        sink.write(rows(4))
        assert hung.entered.wait(PATIENCE_S)
        sink.write(rows(3))
        sink.close(0.01)
        assert lost(sink) == {"shutdown": 7}
        hung.gate.set()
        assert hung.closed.wait(PATIENCE_S)
        assert hung.calls == ["4", "close 0"], "what was given up isn't written after all"
        assert lost(sink) == {"shutdown": 3}


class TestErrors:
    @pytest.mark.parametrize(
        "error", [MemoryError(), SystemError("error return without exception set")], ids=repr
    )
    def test_a_batch_that_finds_no_memory_is_dropped_and_the_next_comes(
        self, make: Make, caplog: pytest.LogCaptureFixture, error: Exception
    ) -> None:
        writer = Gated(errors=(error, error))
        sink = make(writer)
        for count in (5, 4, 1, 1):
            sink.write(rows(count))
        assert sink.flush(PATIENCE_S)
        assert writer.calls == [repr(error), repr(error), "1", "1"]
        assert lost(sink) == {"error": 9}
        assert [record.getMessage() for record in caplog.records] == [
            "there was no memory to write a Chrome trace; what it misses is counted as dropped"
        ]

    def test_another_error_ends_it_and_reaches_the_next_write(self, make: Make) -> None:
        writer = Gated(errors=(OSError("broken"),))
        sink = make(writer)
        sink.write(rows(2))
        assert not sink.flush(PATIENCE_S)
        assert writer.closed.wait(PATIENCE_S)
        with pytest.raises(OSError, match="broken"):
            sink.write(rows(1))
        sink.close(PATIENCE_S)
        assert lost(sink) == {"error": 2}

    def test_an_error_that_no_write_comes_for_is_raised_at_the_end_once(self, make: Make) -> None:
        sink = make(Gated(errors=(OSError("broken"),)))
        sink.write(rows(2))
        with pytest.raises(OSError, match="broken"):
            sink.close(PATIENCE_S)
        sink.close(PATIENCE_S)
        assert lost(sink) == {"error": 2}
