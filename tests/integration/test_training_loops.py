"""Training loops as people write them: what is in which trace of our own, and where Chrome traces have steps."""

from __future__ import annotations

import contextlib
import copy
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from exported_traces import Traces
from opentelemetry.sdk.trace import ReadableSpan

from otel_recfn import OtelRecordFunctionInstrumentor, record_function
from trace_files import events_in

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
nn = torch.nn
X = torch.ones(2, 3)
STEP, VALIDATION = "training step", "module call"
Trace = tuple[str, int | None, list[str]]
"""Name and number of a root span, and which of the program's own ranges lie in its trace, in their order."""


class Loop:
    """A model, its optimizer and what one does with them; each batch says what it is for."""

    def __init__(self) -> None:
        self.model, self.loss = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), nn.MSELoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 1)

    def forward(self, model: Any = None) -> Any:
        return self.loss((model or self.model)(X), X)

    def closure(self) -> Any:
        """All of a step but the optimizer's own."""
        with record_function("batch"):
            loss = self.forward()
        self.optimizer.zero_grad()
        loss.backward()
        return loss

    def train(self, batches: int = 2, accumulated: int = 1) -> None:
        self.model.train()
        for _ in range(batches):
            self.optimizer.zero_grad()
            for _ in range(accumulated):
                with record_function("batch"):
                    pass
                self.forward().backward()
            self.optimizer.step()

    def validate(self, batches: int = 2, *, mode: bool = True, model: Any = None) -> None:
        self.model.train(not mode)
        with torch.no_grad():
            for _ in range(batches):
                self.forward(model)
                with record_function("validated"):
                    pass
        self.model.train()


class Traced(Traces):
    """What an instrumented program exports and writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        super().__init__(chrome_trace=str(path))

    def finish(self) -> list[Trace]:
        """The traces, in the order of their starts."""
        self.instrumentor.uninstrument()
        traces: dict[int, list[ReadableSpan]] = defaultdict(list)
        for span in self.spans():
            traces[span.context.trace_id].append(span)
        found = []
        for spans in traces.values():
            spans.sort(key=lambda span: span.start_time or 0)
            (root,) = [span for span in spans if span.parent is None]
            assert {span.parent.span_id for span in spans if span.parent} <= {
                span.context.span_id for span in spans
            }
            number = (root.attributes or {}).get("recfn.step.number")
            found.append(
                (
                    root.start_time,
                    root.name.partition(":")[0],
                    number,
                    names_of(span.name for span in spans),
                )
            )
        return [tuple(one[1:]) for one in sorted(found, key=lambda one: one[0])]  # type: ignore[misc]

    def slices(self) -> list[tuple[str, Any, list[str]]]:
        """The steps of the Chrome trace, their numbers, and what lies in them."""
        slices = events_in(self.path, "X")
        steps = [one for one in slices if one["name"].startswith("ProfilerStep#")]
        steps.sort(key=lambda one: one["ts"])
        return [
            (
                one["name"],
                one["args"]["recfn.step.number"],
                names_of(each["name"] for each in slices if lies_in(each, one)),
            )
            for one in steps
        ]


def lies_in(inner: Any, outer: Any) -> bool:
    return bool(
        outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]
    )


SHOWN = {"batch": "batch", "validated": "validated", "teacher": "teacher"}


def names_of(names: Any) -> list[str]:
    """Those of the program's own, and optimizers' steps."""
    found = [
        SHOWN.get(name, "step" if name.startswith("Optimizer.step#") else "") for name in names
    ]
    return [name for name in found if name]


@pytest.fixture
def traced(
    tmp_path: Path, instrumentor: OtelRecordFunctionInstrumentor
) -> Callable[[Callable[[], object]], Traced]:
    def traced(program: Callable[[], object]) -> Traced:
        made = Traced(tmp_path / "trace.json")
        program()
        return made

    return traced


def a_step(number: int, *within: str) -> Trace:
    return STEP, number, [*(within or ("batch",)), "step"]


def validation(batches: int = 2) -> Trace:
    return VALIDATION, None, ["validated"] * batches


def steps_of(traces: list[Trace]) -> list[tuple[str, Any, list[str]]]:
    """As the Chrome trace has them: what was done since the step before lies in them, too."""
    found, before = list[tuple[str, Any, list[str]]](), list[str]()
    for name, number, within in traces:
        before = [*before, *within]
        if name == STEP:
            found.append((f"ProfilerStep#{number}", number, before))
            before = []
    return found


def of_training(traces: list[Trace]) -> list[Trace]:
    """Without those in which none of the program's ranges lies, as its first lines'."""
    return [trace for trace in traces if trace[2]]


Run = Callable[[Callable[[], object]], Traced]


@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize("accumulated", [1, 3])
def test_validation_between_epochs(traced: Run, batches: int, accumulated: int) -> None:
    def program() -> None:
        loop = Loop()
        for _ in range(3):
            loop.train(accumulated=accumulated)
            loop.validate(batches)
            loop.schedule.step()

    run = traced(program)
    found = of_training(run.finish())
    expected = [each for epoch in range(3) for each in (
        a_step(2 * epoch, *["batch"] * accumulated), a_step(2 * epoch + 1, *["batch"] * accumulated), validation(batches),
    )]  # fmt: skip
    assert found == expected
    assert run.slices() == steps_of(expected)


@pytest.mark.parametrize("kind", ["gradients off", "another model", "a copy"])
def test_validation_that_eval_mode_of_the_model_does_not_show(traced: Run, kind: str) -> None:
    def program() -> None:
        loop = Loop()
        average = {
            "gradients off": loop.model,
            "another model": nn.Linear(3, 3),
            "a copy": copy.deepcopy(loop.model),
        }[kind]
        for _ in range(2):
            loop.train()
            loop.validate(3, mode=False, model=average)

    run = traced(program)
    found = of_training(run.finish())
    assert found == [a_step(0), a_step(1), validation(3), a_step(2), a_step(3), validation(3)]
    assert run.slices() == steps_of(found)


@pytest.mark.parametrize("generated", ["without gradients", "detached"])
def test_two_optimizers_take_turns(traced: Run, generated: str) -> None:
    """Each of a GAN's two has steps of its own, with what it needs of the other one's model."""

    def program() -> None:
        loop, judge = Loop(), nn.Linear(3, 1)
        judging = torch.optim.SGD(judge.parameters(), lr=0.1)
        for _ in range(2):
            for _ in range(2):
                with (
                    torch.no_grad()
                    if generated == "without gradients"
                    else contextlib.nullcontext()
                ):
                    fake = loop.model(X).detach()
                with record_function("teacher"):
                    pass
                judging.zero_grad()
                judge(fake).mean().backward()
                judging.step()
                with record_function("batch"):
                    pass
                loop.optimizer.zero_grad()
                judge(loop.model(X)).mean().backward()
                loop.optimizer.step()
            loop.validate(2)

    found = of_training(traced(program).finish())
    steps = [trace for trace in found if trace[0] == STEP]
    assert [number for _, number, _ in steps] == list(range(8))
    assert steps[2:4] == [a_step(2, "teacher"), a_step(3)]
    assert steps[6:] == [a_step(6, "teacher"), a_step(7)]
    assert [within.count("validated") for name, _, within in found if "validated" in within] == [
        2,
        2,
    ]
    assert not [name for name, _, within in found if "validated" in within and name != VALIDATION]


@pytest.mark.parametrize("frozen", ["teacher", "backbone"])
def test_a_module_that_is_never_trained_is_a_part_of_the_step(traced: Run, frozen: str) -> None:
    def program() -> None:
        loop, teacher = Loop(), nn.Linear(3, 3).eval()
        loop.train()  # what a thread calls in eval mode before it has trained anything is its first validation
        for _ in range(3):
            with torch.no_grad():
                told = teacher(X)
                with record_function("teacher"):
                    pass
            loop.loss(loop.model(told if frozen == "backbone" else X), told).backward()
            loop.optimizer.step()

    run = traced(program)
    found = of_training(run.finish())
    assert found == [a_step(0), a_step(1), *[a_step(number, "teacher") for number in range(2, 5)]]
    assert run.slices() == steps_of(found)


def test_a_loop_as_lightning_has_it(traced: Run) -> None:
    """A sanity check; all of a step in the optimizer's closure; validation in the middle and at the end of each epoch."""

    def program() -> None:
        loop = Loop()

        def validate() -> None:
            loop.model.eval()
            with torch.inference_mode():
                for _ in range(2):
                    loop.forward()
                    with record_function("validated"):
                        pass
            loop.model.train()

        validate()
        for _ in range(2):
            for batch in range(4):
                X.clone()
                loop.optimizer.step(loop.closure)
                if batch % 2:
                    validate()
            loop.schedule.step()

    run = traced(program)
    found = of_training(run.finish())
    sanity, found = found[:-12], found[-12:]
    assert {trace[0] for trace in sanity} == {VALIDATION}
    assert [name for trace in sanity for name in trace[2]] == ["validated"] * 2
    step = ["step", "batch"]
    assert found == [
        each
        for n in range(0, 8, 2)
        for each in ((STEP, n, step), (STEP, n + 1, step), validation(2))
    ]
    slices = [
        [(name, sorted(within)) for name, _, within in each]
        for each in (run.slices(), steps_of([*sanity, *found]))
    ]
    assert slices[0] == slices[1]


@pytest.mark.parametrize("accumulated", [2, 12])
def test_a_loop_as_transformers_has_it(traced: Run, accumulated: int) -> None:
    """The loss comes out of the model; gradients are accumulated, and zeroed after the step; evaluation every other step."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.loss = nn.Linear(3, 3), nn.CrossEntropyLoss()

        def forward(self, x: Any) -> Any:
            return self.loss(self.layer(x), x)

    def program() -> None:
        model = Model()
        optimizer = torch.optim.AdamW(model.parameters())
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        for step in range(4):
            for _ in range(accumulated):
                model.train()
                loss = model(X)
                with record_function("batch"):
                    (loss / accumulated).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            model.zero_grad()
            if step % 2:
                model.eval()
                for _ in range(2):
                    with torch.no_grad():
                        model(X).mean()
                    with record_function("validated"):
                        pass

    run = traced(program)
    found = of_training(run.finish())
    steps = [trace for trace in found if trace[0] == STEP]
    assert [number for _, number, _ in steps] == [0, 1, 2, 3]
    assert steps[1:] == [
        a_step(number, *["batch"] * accumulated) for number in (1, 2, 3)
    ]  # by 1 the thread is known to train
    assert [trace for trace in found if "validated" in trace[2]] == [validation(2)] * 2
    in_steps = [a_step(number, *["batch"] * accumulated) for number in range(4)]
    assert run.slices() == steps_of([*in_steps[:2], validation(2), *in_steps[2:]])


@pytest.mark.parametrize("before", ["", "trained in training mode"])
def test_training_in_eval_mode_is_training(traced: Run, before: str) -> None:
    """As with a pretrained model that nobody has told to train, or after a validation that forgot to."""

    def program() -> None:
        loop = Loop()
        loop.model.train(bool(before))
        for number in range(5):
            if before and number == 1:
                loop.validate(2)
                loop.model.eval()
            with record_function("batch"):
                pass
            loop.optimizer.zero_grad()
            loop.forward().backward()
            loop.optimizer.step()

    found = of_training(traced(program).finish())
    assert found[-3:] == [a_step(number) for number in (2, 3, 4)]
    assert [trace[1] for trace in found if trace[0] == STEP] == [0, 1, 2, 3, 4]


def test_steps_in_a_span_of_an_epoch(traced: Run) -> None:
    made = traced(lambda: None)
    tracer, loop = made.provider.get_tracer("program"), Loop()
    for _ in range(2):
        with tracer.start_as_current_span("epoch"):
            loop.train()
            loop.validate()
    (first, second) = of_training(made.finish())
    assert (first[0], second[0]) == ("epoch", "epoch")
    assert made.slices() == steps_of([a_step(number) for number in range(4)])
    slices = events_in(made.path, "X")
    epochs = [one for one in slices if one["name"] == "epoch"]
    for step in [one for one in slices if one["name"].startswith("ProfilerStep#")]:
        assert sum(lies_in(step, epoch) and step["tid"] == epoch["tid"] for epoch in epochs) == 1


def test_steps_that_the_program_marks_are_left_alone(traced: Run) -> None:
    from otel_recfn import step

    def program() -> None:
        loop = Loop()
        for number in range(2):
            with step("train", number):
                loop.train(1)

    run = traced(program)
    assert [(name, number) for name, number, _ in of_training(run.finish())] == [
        ("train", 0),
        ("train", 1),
    ]
    assert run.slices() == []
