"""The training steps that a profile shows beside other captures: those that it shows alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from helpers.exported_traces import Traces
from helpers.pauses import without_pauses
from helpers.trace_files import events_in
from otel_recfn import OtelRecordFunctionInstrumentor, profile, record_function

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
Slice = dict[str, Any]
PARTS = ("zero_grad", "forward", "optimizer")


class Loop:
    """A training loop, in parts."""

    def __init__(self) -> None:
        self.model = torch.nn.Linear(3, 3)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def zero_grad(self) -> None:
        with record_function("zero_grad"):
            self.optimizer.zero_grad()

    def forward(self) -> None:
        self.model(torch.ones(2, 3)).sum().backward()
        with record_function("forward"):
            pass

    def step(self) -> None:
        self.optimizer.step()

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.zero_grad()
            self.forward()
            self.step()

    def train_and_clear(self, steps: int) -> None:
        """As ``train``, but gradients are cleared after the optimizer's step."""
        for _ in range(steps):
            self.forward()
            self.step()
            self.zero_grad()


@pytest.fixture(autouse=True)
def whatever_the_machine_does() -> Iterator[None]:
    with without_pauses():
        yield


@pytest.fixture
def loop(instrumentor: OtelRecordFunctionInstrumentor) -> Loop:
    return Loop()


def steps_in(path: Path) -> list[Slice]:
    """The slices of training steps in a Chrome trace, in the order of their begins."""
    steps = [each for each in events_in(path, "X") if each["name"].startswith("ProfilerStep#")]
    return sorted(steps, key=lambda each: each["ts"])


def parts_in(path: Path) -> list[list[str]]:
    """What lies in each training step."""
    slices = events_in(path, "X")
    return [
        [part for each in slices if (part := part_of(each)) and lies_in(each, step)]
        for step in steps_in(path)
    ]


def part_of(each: Slice) -> str:
    if each["name"].startswith("Optimizer.step#"):
        return "optimizer"
    return each["name"] if each["name"] in PARTS else ""


def lies_in(inner: Slice, outer: Slice) -> bool:
    return bool(
        outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]
    )


def times(step: Slice) -> tuple[str, float, float]:
    return step["name"], step["ts"], step["dur"]


@pytest.fixture
def export(tmp_path: Path) -> Callable[[profile], Path]:
    def export(prof: profile) -> Path:
        path = tmp_path / "profile.json"
        prof.export_chrome_trace(path)
        return path

    return export


Export = Callable[[profile], Path]
WHOLE = list(PARTS)


def forward_before(loop: Loop) -> None:
    loop.train(1)
    loop.zero_grad()
    loop.forward()


def optimizer_first(loop: Loop) -> None:
    loop.step()
    loop.train(1)


def no_optimizer(loop: Loop) -> None:
    loop.zero_grad()
    loop.forward()


def last_in_a_block(loop: Loop) -> None:
    loop.train(1)
    with record_function("block"):
        loop.train(1)


@pytest.mark.parametrize(
    ("before", "program", "expected"),
    [
        (lambda loop: loop.train(2), lambda loop: loop.train(2), [WHOLE, WHOLE]),
        (
            lambda loop: loop.train_and_clear(2),
            lambda loop: loop.train_and_clear(2),
            [["forward", "optimizer"], WHOLE],
        ),
        (forward_before, optimizer_first, [["optimizer"], WHOLE]),
        (lambda loop: loop.train(1), no_optimizer, []),
        (lambda loop: loop.train(1), last_in_a_block, [WHOLE, WHOLE]),
    ],
)
def test_beside_the_instrumentation_as_alone(
    loop: Loop,
    export: Export,
    before: Callable[[Loop], None],
    program: Callable[[Loop], None],
    expected: list[list[str]],
) -> None:
    for instrument in (False, True):
        if instrument:
            OtelRecordFunctionInstrumentor().instrument(tracer_provider=TracerProvider())
        before(loop)
        with profile() as prof:
            program(loop)
        assert parts_in(export(prof)) == expected


def test_a_step_that_lies_in_the_profile_is_that_of_the_trace(
    loop: Loop, export: Export, tmp_path: Path
) -> None:
    whole = tmp_path / "trace.json"
    OtelRecordFunctionInstrumentor().instrument(
        tracer_provider=TracerProvider(), chrome_trace=str(whole)
    )
    loop.train(1)
    with profile() as prof:
        loop.train(2)
    loop.train(1)
    OtelRecordFunctionInstrumentor().uninstrument()
    found = [times(step) for step in steps_in(whole)]
    assert [name for name, *_ in found] == [f"ProfilerStep#{number}" for number in range(4)]
    assert [times(step) for step in steps_in(export(prof))] == found[1:3]


def test_profiles_that_overlap(loop: Loop, export: Export) -> None:
    first = profile()
    second = profile()
    first.start()
    loop.train(1)
    second.start()
    loop.train(1)
    loop.forward()
    first.stop()
    loop.step()
    second.stop()
    assert parts_in(export(first)) == [WHOLE, WHOLE]
    assert parts_in(export(second)) == [WHOLE, ["forward", "optimizer"]]


def test_a_profile_in_a_range_that_is_open(loop: Loop, export: Export) -> None:
    OtelRecordFunctionInstrumentor().instrument(tracer_provider=TracerProvider())
    around = profile()
    ends_inside = profile()
    around.start()
    with record_function("block"):
        loop.forward()
        with profile() as inside:
            loop.train(1)
        ends_inside.start()
        loop.zero_grad()
        ends_inside.stop()
        around.stop()
    assert parts_in(export(around)) == [["forward", *WHOLE, "zero_grad"]]
    # The range is the step, and they haven't seen it.
    assert parts_in(export(inside)) == parts_in(export(ends_inside)) == []


@pytest.mark.parametrize("first", ["instrumentation", "profile"])
def test_the_instrumentation_ends_before_the_profile(
    loop: Loop, export: Export, tmp_path: Path, first: str
) -> None:
    path = tmp_path / "trace.json"
    prof = profile()

    def instrument() -> Traces:
        return Traces(chrome_trace=str(path))

    traces = instrument() if first == "instrumentation" else None
    prof.start()
    loop.zero_grad()
    traces = traces or instrument()
    loop.forward()
    loop.step()
    traces.instrumentor.uninstrument()
    loop.train(1)
    prof.stop()
    seen = WHOLE if first == "instrumentation" else ["forward", "optimizer"]
    assert parts_in(path) == [seen]
    assert parts_in(export(prof)) == [WHOLE, WHOLE]
    numbers = [(span.attributes or {}).get("recfn.step.number") for span in traces.spans()]
    assert [number for number in numbers if number is not None] == [0]


def test_steps_that_a_schedule_marks_are_shown_once(loop: Loop, export: Export) -> None:
    OtelRecordFunctionInstrumentor().instrument(tracer_provider=TracerProvider())
    found = []
    prof = profile(
        schedule=torch.profiler.schedule(wait=1, warmup=0, active=2),
        on_trace_ready=lambda ready: found.append(
            ([step["name"] for step in steps_in(export(ready))], parts_in(export(ready)))
        ),
    )
    with prof:
        for _ in range(6):
            loop.train_and_clear(1)
            prof.step()
    cleared = [*PARTS[1:], PARTS[0]]
    assert found == [
        (["ProfilerStep#1", "ProfilerStep#2"], [cleared, cleared]),
        (["ProfilerStep#4", "ProfilerStep#5"], [cleared, cleared]),
    ]
