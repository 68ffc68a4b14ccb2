"""HolisticTraceAnalysis reads a program's trace, with slices of its spans and of its steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from helpers.timeouts import within_time
from helpers.trace_files import names_in
from otel_recfn import OtelRecordFunctionInstrumentor, record_function, step

trace_analysis = pytest.importorskip("hta.trace_analysis")
call_stack = pytest.importorskip("hta.common.call_stack")

pytestmark = pytest.mark.one_python

STEPS = 3


@contextmanager
def within(around: Any) -> Iterator[None]:
    """In HolisticTraceAnalysis, what begins and ends within the same microseconds is all one."""
    with around, within_time(20_000):
        yield


def write_trace(instrumentor: OtelRecordFunctionInstrumentor, path: Path) -> list[int]:
    """The trace of a program. Returns the numbers of its steps."""
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("test")
    instrumentor.instrument(chrome_trace=path)
    with tracer.start_as_current_span("request"):
        with within(record_function("accept")):
            pass
        with within(record_function("serve")):
            for _ in range(STEPS):
                with within(step()), within(tracer.start_as_current_span("batch")):
                    with within(record_function("fetch")):
                        pass
                    with within(record_function("work")):
                        for _ in range(2):
                            with within(record_function("load")):
                                pass
                    with within(record_function("store")):
                        pass
        with within(record_function("answer")):
            pass
    instrumentor.uninstrument()
    return sorted(
        int(name.partition("#")[2]) for name in names_in(path) if name.startswith("ProfilerStep#")
    )


def test_it_finds_the_steps_and_what_lies_in_what(
    instrumentor: OtelRecordFunctionInstrumentor, tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    numbers = write_trace(instrumentor, path)
    assert len(numbers) == STEPS
    analysis = trace_analysis.TraceAnalysis(trace_files={0: str(path)}, trace_dir=str(path.parent))
    assert analysis.get_profiler_steps() == numbers[:-1]  # it leaves the last one out
    frame = analysis.t.get_trace(0)
    names = analysis.t.symbol_table.get_sym_table()
    (stacks,) = call_stack.CallGraph(analysis.t).call_stacks
    paths = {
        tuple(
            names[frame.loc[index, "name"]] for index in stacks.get_path_to_root(row) if index >= 0
        )
        for row in frame.index[frame["name"].map(lambda symbol: names[symbol] == "load")]
    }
    assert paths == {
        ("load", "work", "batch", f"ProfilerStep#{number}", "serve", "request")
        for number in numbers[:-1]
    }
