"""What it costs to observe an operator and to record a range, beside the peers, all in one process.

    python benchmarks/bench_observer.py [rounds]

The machine may be busy: every side takes a short turn in each of many rounds, and the fastest turn
of each counts. The cost of observing is the time of an operator with an observer less that without.
The floor is the cheapest observer there can be: an empty pair of callbacks, with the ids that ours
asks for as well.

"All sinks live" in short turns shows what the operators' thread pays. Drain and sinks work every 20
ms to 100 ms in threads of their own; "sustained" has them in it, at a rate that programs don't
reach: nothing but the cheapest operator there is, so that buffers fill faster than anything drains
them, and drops are counted.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lib.command_line import read_number, sized

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

import torch
from lib.compilers import build_folder
from lib.empty_range import compiled_empty_range
from lib.no_export import NoExport
from lib.operator_loop import empty_pair, loaded_loop
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from torch.autograd import profiler_legacy
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile

from otel_recfn import OtelRecordFunctionInstrumentor, record_function
from otel_recfn.model.events import ALL_SCOPES_MASK
from otel_recfn.pytorch.observer import TorchObserver
from otel_recfn.recording.recorder import recorder
from otel_recfn.recording.types import DEFAULT_BUFFER_BYTES
from otel_recfn.sinks.in_memory import InMemorySink
from otel_recfn.sources.protocol import Wanted

ROUNDS = sized(60, 1)
OPERATORS = sized(20_000, 500)
SUSTAINED_OPERATORS = sized(3_000_000, 5_000)
SUSTAINED_ROUNDS = sized(3, 1)
SLOW_OPERATORS = sized(500, 50)  # for sides that take microseconds or keep everything
RANGES = sized(10_000, 500)
SLOW_RANGES = sized(1_000, 50)

Side = tuple[str, Callable[[], float]]
"""A name, and a turn: nanoseconds per operator or range."""


def main() -> None:
    """Measures all sides in turns and prints them."""
    rounds = read_number(__doc__, "rounds", ROUNDS)
    warnings.simplefilter("ignore")
    with build_folder() as folder:
        loop = loaded_loop(folder)
        report_operators(fastest(list(operator_sides(loop, folder)), rounds))
        report_sustained(loop, folder)
        report_ranges(fastest(list(range_sides(folder)), rounds))
    report_bytes()


def fastest(sides: list[Side], rounds: int) -> dict[str, float]:
    """Nanoseconds of the fastest turn of each side."""
    best: dict[str, float] = {name: float("inf") for name, _ in sides}
    for _ in range(rounds):
        for name, turn in sides:
            best[name] = min(best[name], turn())
    return best


def operator_sides(loop: Any, folder: Path) -> Iterator[Side]:
    """Observers of operators; ``none`` is without any."""

    def timed(count: int) -> float:
        loop.time_operators(count // 10)
        nanoseconds: float = loop.time_operators(count)
        return nanoseconds

    def observed(observer: Callable[[], Any], count: int) -> Callable[[], float]:
        def turn() -> float:
            with observer():
                return timed(count)

        return turn

    yield "none", lambda: timed(OPERATORS)
    yield "empty callback pair", observed(lambda: empty_pair(loop, ids=False), OPERATORS)
    yield "empty callback pair with ids", observed(lambda: empty_pair(loop, ids=True), OPERATORS)
    yield "ours, the recorder alone", observed(ours_alone, OPERATORS)
    yield "ours, in an unsampled span", observed(ours_unsampled, OPERATORS)
    yield "ours, all sinks live", observed(lambda: ours_live(folder), OPERATORS)
    yield (
        "Kineto (torch.profiler)",
        observed(lambda: profile(activities=[ProfilerActivity.CPU]), OPERATORS),
    )
    yield "legacy profiler", observed(profiler_legacy.profile, SLOW_OPERATORS * 4)
    yield "execution trace observer", observed(lambda: execution_trace(folder), SLOW_OPERATORS)
    yield "live SDK spans, in Python", sdk_turn(SLOW_OPERATORS)


@contextmanager
def ours_alone() -> Iterator[None]:
    """Nothing drains while operators run: the buffer holds a turn."""
    ours = recorder
    observer = TorchObserver()
    ours.start(ALL_SCOPES_MASK, DEFAULT_BUFFER_BYTES)
    observer.enable(Wanted())
    if not observer.enabled:
        raise SystemExit(observer.status().reason)
    before = ours.counters().dropped
    try:
        yield
    finally:
        observer.disable()
        ours.stop()
        ours.drain(close_open=True)
        assert ours.counters().dropped == before, "a turn is too long for the buffer"


@contextmanager
def ours_live(folder: Path) -> Iterator[None]:
    """An instrumentation with a Chrome file, spans below a span of the program, and memory."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(NoExport()))
    instrumentor = OtelRecordFunctionInstrumentor()
    instrumentor.instrument(
        tracer_provider=provider, chrome_trace=folder / "trace.json.gz", sinks=[InMemorySink()]
    )
    try:
        with provider.get_tracer("bench").start_as_current_span("bench"):
            yield
    finally:
        instrumentor.uninstrument()
        provider.shutdown()
        assert instrumentor.counters()["recorded"] >= OPERATORS


@contextmanager
def ours_unsampled() -> Iterator[None]:
    """An instrumentation with nothing but spans, below a span of the program that is not
    sampled.
    """
    provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    instrumentor = OtelRecordFunctionInstrumentor()
    instrumentor.instrument(tracer_provider=provider)
    before = instrumentor.counters()["unsampled"]
    try:
        with provider.get_tracer("bench").start_as_current_span("bench"):
            yield
    finally:
        assert instrumentor.counters()["unsampled"] - before >= OPERATORS
        instrumentor.uninstrument()
        provider.shutdown()


@contextmanager
def execution_trace(folder: Path) -> Iterator[None]:
    observer = ExecutionTraceObserver().register_callback(str(folder / "execution.json"))
    observer.start()
    try:
        yield
    finally:
        observer.stop()
        observer.unregister_callback()


def sdk_turn(count: int) -> Callable[[], float]:
    """A span started and ended, with the attributes that ours have."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(NoExport()))
    tracer = provider.get_tracer("bench")
    attributes = {
        "recfn.scope": "FUNCTION",
        "recfn.thread_id": 1,
        "recfn.event_id": 1,
        "recfn.handle": 1,
    }

    def turn() -> float:
        started = time.perf_counter_ns()
        for _ in range(count):
            tracer.start_span("aten::is_set_to", attributes=attributes).end()
        return (time.perf_counter_ns() - started) / count

    return turn


def report_operators(best: dict[str, float]) -> None:
    none, floor = best["none"], best["empty callback pair with ids"] - best["none"]
    print(f"{'observing an operator':<34}{'ns':>10}{'cost':>10}{'x floor':>10}")
    for name, nanoseconds in best.items():
        # Those are made beside the operator, not around it.
        cost = nanoseconds if "SDK" in name else nanoseconds - none
        print(f"{name:<34}{nanoseconds:>10,.1f}{cost:>10,.1f}{cost / floor:>10.2f}")


def report_sustained(loop: Any, folder: Path) -> None:
    """Long enough for many drains."""
    plain = float("inf")
    live = float("inf")
    for _ in range(SUSTAINED_ROUNDS):
        plain = min(plain, loop.time_operators(SUSTAINED_OPERATORS))
        with ours_live(folder):
            live = min(live, loop.time_operators(SUSTAINED_OPERATORS))
    counters = OtelRecordFunctionInstrumentor().counters()
    dropped = counters["dropped.buffer_full"]
    rows = counters["recorded"]
    seconds = live * SUSTAINED_OPERATORS / 1e9
    print(f"{'ours, all sinks live, sustained':<34}{live:>10,.1f}{live - plain:>10,.1f}")
    print(
        f"    {rows:,} ranges recorded in {seconds:.2f} s; {dropped:,} dropped in"
        f" {SUSTAINED_ROUNDS} such rounds"
    )


def range_sides(folder: Path) -> Iterator[Side]:
    """``with <range>: pass``; ``none`` is the loop alone."""
    empty = compiled_empty_range(folder)
    torch_range, fast = torch.profiler.record_function, torch._C._profiler._RecordFunctionFast
    yield "none", lambda: range_turn("pass", {}, RANGES)
    yield (
        "empty C object, made and entered",
        lambda: range_turn("with R(): pass", {"R": empty}, RANGES),
    )
    yield (
        "ours, recorded",
        lambda: recorded("with R('range'): pass", {"R": record_function}, RANGES),
    )
    yield (
        "ours, nothing observes",
        lambda: range_turn("with R('range'): pass", {"R": record_function}, RANGES),
    )
    yield (
        "_RecordFunctionFast, Kineto records",
        lambda: with_kineto("with R('range'): pass", {"R": fast}, RANGES),
    )
    yield (
        "_RecordFunctionFast, idle",
        lambda: range_turn("with R('range'): pass", {"R": fast}, RANGES),
    )
    yield (
        "torch's, Kineto records",
        lambda: with_kineto("with R('range'): pass", {"R": torch_range}, SLOW_RANGES),
    )
    yield (
        "torch's, idle",
        lambda: range_turn("with R('range'): pass", {"R": torch_range}, SLOW_RANGES),
    )
    yield "live SDK span", sdk_turn(SLOW_RANGES)


def range_turn(statement: str, names: dict[str, Any], count: int) -> float:
    space: dict[str, Any] = dict(names)
    exec(f"def loop(times):\n    for _ in times:\n        {statement}", space)
    space["loop"](range(count // 10))
    started = time.perf_counter_ns()
    space["loop"](range(count))
    return (time.perf_counter_ns() - started) / count


def recorded(statement: str, names: dict[str, Any], count: int) -> float:
    ours = recorder
    ours.start(ALL_SCOPES_MASK, DEFAULT_BUFFER_BYTES)
    try:
        return range_turn(statement, names, count)
    finally:
        ours.stop()
        assert len(ours.drain(close_open=True)) >= count


def with_kineto(statement: str, names: dict[str, Any], count: int) -> float:
    with profile(activities=[ProfilerActivity.CPU]):
        return range_turn(statement, names, count)


def report_ranges(best: dict[str, float]) -> None:
    none = best["none"]
    print(f"\n{'a range in Python':<38}{'ns':>10}")
    for name, nanoseconds in best.items():
        print(f"{name:<38}{nanoseconds - none:>10,.1f}")


def report_bytes() -> None:
    """As many ranges as fit a buffer of known size, in a thread that never recorded before."""
    size = 1 << 20
    relu_input = torch.ones(1)
    for name, one in (
        ("a Python range", _python_range),
        ("an operator", lambda: relu_input.is_set_to(relu_input)),
    ):
        ours = recorder
        observer = TorchObserver()
        ours.drain(close_open=True)
        ours.start(ALL_SCOPES_MASK, size)
        observer.enable(Wanted())

        def fill(one: Callable[[], object] = one, ours: Any = ours) -> None:
            dropped = ours.counters().dropped
            while ours.counters().dropped == dropped:
                one()

        thread = threading.Thread(target=fill)
        thread.start()
        thread.join()
        observer.disable()
        ours.stop()
        rows = len(ours.drain(close_open=True))
        print(
            f"{name:<38}{size / rows:>10,.1f} bytes before the drain ({rows:,} in a buffer of"
            f" {size:,})"
        )


def _python_range() -> None:
    with record_function("range"):
        pass


if __name__ == "__main__":
    main()
