"""Every row of a capture is counted once per sink, whatever the sink, its sampler or the memory
does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler, SamplingResult

from helpers.batches import make_batch
from helpers.timeouts import PATIENCE_S
from otel_recfn.batches.selection import Selected
from otel_recfn.model.batch import Batch
from otel_recfn.model.counters import OUTCOMES
from otel_recfn.model.events import EventSource, make_event_id
from otel_recfn.recording.types import RecorderCounters
from otel_recfn.session.capture import Capture
from otel_recfn.sinks.protocol import Sink
from otel_recfn.sinks.spans.sink import SpansSink

NOTHING = {"dropped.buffer_full": 0, "dropped.error": 0, "incomplete": 0}


class Raising(Sink):
    """Takes batches, some rows of each before it raises what it is told to."""

    name = "raising"

    def __init__(self, errors: list[Exception | None]) -> None:
        self.errors = list(errors)
        self.rows = 0

    def write(self, batch: Batch) -> None:
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        self.rows += len(batch)

    def flush(self, timeout_s: float) -> bool:
        return True

    def close(self, timeout_s: float) -> None:
        pass

    def counters(self) -> Mapping[str, int]:
        return {"rows": self.rows}

    def after_fork_in_child(self) -> Sink | None:
        return None


def capture_of(*sinks: Sink) -> Capture:
    return Capture(Selected(), sinks, buffer_bytes=1 << 20)


def write(capture: Capture, batch: Batch, view: Callable[[Batch], Batch] | None = None) -> None:
    capture.put(batch, view)
    capture.deliver()


ERRORS = st.lists(
    st.sampled_from([None, None, MemoryError("none"), OSError(5, "disk"), ValueError("wrong")]),
    max_size=6,
)


def counters_of(capture: Capture) -> dict[str, int]:
    return capture.counters(RecorderCounters())


@given(ERRORS, st.lists(st.integers(1, 5), min_size=1, max_size=8))
def test_what_a_sink_raised_on_and_what_came_after_is_missed(
    errors: list[Any], sizes: list[int]
) -> None:
    capture = capture_of(Raising(errors), other := Raising([]))
    other.name = "other"
    for size in sizes:
        write(capture, make_batch([{}] * size))
    counters = counters_of(capture)
    assert counters["recorded"] == sum(sizes) == counters["other.rows"]
    assert counters["raising.rows"] + counters.get("raising.dropped.error", 0) == sum(sizes)
    assert "other.dropped.error" not in counters


def test_a_sink_goes_on_after_it_found_no_memory() -> None:
    capture = capture_of(Raising([MemoryError(), None]))
    for _ in range(3):
        write(capture, make_batch([{}] * 2))
    assert counters_of(capture) == {
        **NOTHING,
        "recorded": 6,
        "raising.rows": 4,
        "raising.dropped.error": 2,
    }


def test_a_batch_that_a_capture_cannot_read_is_missed_by_its_sinks() -> None:
    def without_memory(_batch: Batch) -> Batch:
        raise MemoryError

    capture = capture_of(Raising([]))
    write(capture, make_batch([{}] * 2), without_memory)
    write(capture, make_batch([{}]))
    assert counters_of(capture) == {
        **NOTHING,
        "recorded": 3,
        "raising.rows": 1,
        "raising.dropped.error": 2,
    }


class Failing(Sampler, IdGenerator):
    """A sampler and id generator that raises every so often."""

    def __init__(self, every: int) -> None:
        self.every, self.asked = every, 0

    def _count(self) -> None:
        self.asked += 1
        if self.asked % self.every == 0:
            raise ZeroDivisionError("a bug of the program's")

    def should_sample(self, *arguments: Any, **keywords: Any) -> SamplingResult:
        self._count()
        return ALWAYS_ON.should_sample(*arguments, **keywords)

    def get_description(self) -> str:
        return "failing"

    def generate_trace_id(self) -> int:
        self._count()
        return self.asked

    def generate_span_id(self) -> int:
        self._count()
        return self.asked


@pytest.mark.parametrize("every", [1, 2, 3, 7])
def test_a_sampler_that_raises_refuses_and_the_sink_goes_on(
    every: int, caplog: pytest.LogCaptureFixture
) -> None:
    exporter = InMemorySpanExporter()
    failing = Failing(every)
    provider = TracerProvider(sampler=failing, id_generator=failing, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    capture = capture_of(SpansSink(provider, roots_per_second=None))
    for number in range(1, 40):
        top = make_event_id(1, 2 * number)
        write(
            capture,
            make_batch(
                [
                    {"event_id": top + 1, "parent": top},
                    {"event_id": top, "name": "nn.Module: A", "source": EventSource.MODULE},
                ],
                [{"event_id": top, "name": "nn.Module: A", "source": EventSource.MODULE}],
            ),
        )
    capture.close(PATIENCE_S)
    counters = counters_of(capture)
    assert (counters["recorded"], counters["waiting"]) == (78, 0)
    assert counters["recorded"] + counters["added"] == sum(
        counters[outcome] for outcome in OUTCOMES
    )
    assert counters["unsampled"] > 0
    assert sum("raised" in record.message for record in caplog.records) == 1
    spans = exporter.get_finished_spans()
    assert len(spans) == counters["exported"]
    assert bool(spans) == (every == 7)  # each trace asks three times
    known = {span.context.span_id for span in spans}
    assert all(span.parent is None or span.parent.span_id in known for span in spans)
