"""Training loops as people write them: what is in which trace of our own, and where Chrome
traces have steps.
"""

from __future__ import annotations

import contextlib
import copy
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.sampling import Decision, SamplingResult, StaticSampler

from helpers.exported_traces import Traces
from helpers.pauses import without_pauses
from helpers.timeouts import PATIENCE_S
from helpers.trace_files import events_in
from otel_recfn import OtelRecordFunctionInstrumentor, profile, record_function

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
nn = torch.nn
X = torch.ones(2, 3)
STEP, VALIDATION = "training step", "module call"
Trace = tuple[str, int | None, list[str]]
"""Name and number of a root span, and which of the program's own ranges lie in its trace, in
their order.
"""


class Loop:
    """A model, its optimizer and what one does with them; each batch says what it is for."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
        self.loss = nn.MSELoss()
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


EXPOSED = {"batch": "batch", "validated": "validated", "teacher": "teacher"}


def names_of(names: Any) -> list[str]:
    """Those of the program's own, and optimizers' steps."""
    found = [
        EXPOSED.get(name, "step" if name.startswith("Optimizer.step#") else "") for name in names
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


def validation(batches: int = 2) -> list[Trace]:
    """A trace for each batch; that of the model's call, before the loss', has none of the
    program's ranges.
    """
    return [(VALIDATION, None, ["validated"])] * batches


def steps_of(traces: list[Trace]) -> list[tuple[str, Any, list[str]]]:
    """As the Chrome trace has them."""
    return [
        (f"ProfilerStep#{number}", number, within)
        for _, number, within in traces
        if number is not None
    ]


def training_traces(traces: list[Trace]) -> list[Trace]:
    """Without those in which none of the program's ranges lies, as its first lines'."""
    return [trace for trace in traces if trace[2]]


Run = Callable[[Callable[[], object]], Traced]


@pytest.fixture(autouse=True)
def whatever_the_machine_does() -> Iterator[None]:
    with without_pauses():
        yield


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
    found = training_traces(run.finish())
    batch = ["batch"] * accumulated
    expected = []
    for epoch in range(3):
        expected += [a_step(2 * epoch, *batch), a_step(2 * epoch + 1, *batch)]
        expected += validation(batches)
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
    found = training_traces(run.finish())
    first = (STEP, None, ["validated"])  # it could be a teacher's, until it is called again
    assert found == [
        a_step(0),
        a_step(1),
        first,
        *validation(2),
        a_step(2),
        a_step(3),
        *validation(3),
    ]
    assert run.slices() == steps_of(found)


@pytest.mark.parametrize("generated", ["without gradients", "detached"])
def test_two_optimizers_take_turns(traced: Run, generated: str) -> None:
    """Each of a GAN's two has steps of its own, with what it needs of the other one's model."""

    def program() -> None:
        loop = Loop()
        judge = nn.Linear(3, 1)
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

    found = training_traces(traced(program).finish())
    steps = [trace for trace in found if trace[0] == STEP]
    assert [number for _, number, _ in steps] == list(range(8))
    assert steps[2:4] == [a_step(2, "teacher"), a_step(3)]
    assert steps[6:] == [a_step(6, "teacher"), a_step(7)]
    assert [trace for trace in found if "validated" in trace[2]] == validation(4)


class TwoOptimizers:
    """Two layers, each with an optimizer, that are trained by one forward and backward pass."""

    def __init__(self) -> None:
        self.layers = [nn.Linear(3, 3), nn.Linear(3, 3)]
        self.optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in self.layers]
        self.scaler = torch.amp.GradScaler("cpu")

    def loss(self) -> Any:
        outputs = self.layers[1](self.layers[0](X))
        with record_function("batch"):
            return outputs.sum()

    def clipped(self) -> None:
        self.loss().backward()
        for layer, optimizer in zip(self.layers, self.optimizers, strict=True):
            nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    def scaled(self) -> None:
        """The scaler looks at the gradients of each optimizer."""
        self.scaler.scale(self.loss()).backward()
        for optimizer in self.optimizers:
            self.scaler.step(optimizer)
        self.scaler.update()
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def in_the_backward_pass(self) -> None:
        """An optimizer for each parameter, which steps as soon as its gradient is there."""
        if self.optimizers:
            self.optimizers = []
            for layer in self.layers:
                for parameter in layer.parameters():
                    one = torch.optim.SGD([parameter], lr=0.1)
                    parameter.register_post_accumulate_grad_hook(lambda _, one=one: one.step())
        self.loss().backward()


@pytest.mark.parametrize("loop", ["clipped", "scaled", "in_the_backward_pass"])
def test_all_optimizers_that_step_before_the_next_forward_are_one_step(
    traced: Run, loop: str
) -> None:
    def program() -> None:
        iterate = getattr(TwoOptimizers(), loop)
        for _ in range(3):
            iterate()

    run = traced(program)
    found = training_traces(run.finish())
    assert [(name, number) for name, number, _ in found] == [(STEP, n) for n in range(3)]
    assert [[name for name in within if name != "step"] for *_, within in found] == [["batch"]] * 3
    assert run.slices() == steps_of(found)


@pytest.mark.parametrize("frozen", ["teacher", "backbone"])
def test_a_module_that_is_never_trained_is_a_part_of_the_step(traced: Run, frozen: str) -> None:
    def program() -> None:
        loop = Loop()
        teacher = nn.Linear(3, 3).eval()
        # What a thread calls in eval mode before it has trained anything is its first validation.
        loop.train()
        for _ in range(3):
            with torch.no_grad():
                targets = teacher(X)
                with record_function("teacher"):
                    pass
            loop.loss(loop.model(targets if frozen == "backbone" else X), targets).backward()
            loop.optimizer.step()

    run = traced(program)
    found = training_traces(run.finish())
    assert found == [a_step(0), a_step(1), *[a_step(number, "teacher") for number in range(2, 5)]]
    assert run.slices() == steps_of(found)


def test_a_loop_as_lightning_has_it(traced: Run) -> None:
    """A sanity check; all of a step in the optimizer's closure; validation in the middle and at
    the end of each epoch.
    """

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
    found = training_traces(run.finish())
    sanity = found[:-16]
    found = found[-16:]
    assert sanity == validation()
    step = ["step", "batch"]
    assert found == [
        each
        for n in range(0, 8, 2)
        for each in ((STEP, n, step), (STEP, n + 1, step), *validation())
    ]
    slices = [
        [(name, sorted(within)) for name, _, within in each]
        for each in (run.slices(), steps_of([*sanity, *found]))
    ]
    assert slices[0] == slices[1]


@pytest.mark.parametrize("accumulated", [2, 12])
def test_a_loop_as_transformers_has_it(traced: Run, accumulated: int) -> None:
    """The loss comes out of the model; gradients are accumulated, and zeroed after the step;
    evaluation every other step.
    """

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)
            self.loss = nn.CrossEntropyLoss()

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
    found = training_traces(run.finish())
    steps = [trace for trace in found if trace[0] == STEP]
    assert [number for _, number, _ in steps] == [0, 1, 2, 3]
    # By 1 the thread is known to train.
    assert steps[1:] == [a_step(number, *["batch"] * accumulated) for number in (1, 2, 3)]
    assert [trace for trace in found if "validated" in trace[2]] == validation(4)
    in_steps = [a_step(number, *["batch"] * accumulated) for number in range(4)]
    assert run.slices() == steps_of(in_steps)


def test_micro_batches_of_the_first_step_lie_in_it_whenever_a_drain_comes(traced: Run) -> None:
    def program() -> None:
        loop = Loop()
        for _ in range(2):
            for _ in range(3):
                loop.forward().backward()
                with profile():  # a capture that begins or ends drains
                    pass
                with record_function("batch"):
                    pass
            loop.optimizer.step()
            loop.optimizer.zero_grad()

    run = traced(program)
    found = training_traces(run.finish())
    assert found == [a_step(0, "batch", "batch", "batch"), a_step(1, "batch", "batch", "batch")]
    assert run.slices() == steps_of(found)


def test_a_trace_that_goes_on_in_a_new_file_goes_on_with_the_numbers_of_steps(traced: Run) -> None:
    run = traced(lambda: None)
    loop = Loop()
    loop.train(2)
    assert run.instrumentor.flush(PATIENCE_S)
    run.path.unlink()
    loop.train(2)
    found = training_traces(run.finish())
    assert [number for _, number, _ in found] == [0, 1, 2, 3]
    assert run.slices() == steps_of(found)[2:]


@pytest.mark.parametrize("before", ["", "trained in training mode"])
def test_training_in_eval_mode_is_training(traced: Run, before: str) -> None:
    """As with a pretrained model that nobody has told to train, or after a validation that
    forgot to.
    """

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

    found = training_traces(traced(program).finish())
    assert found[-3:] == [a_step(number) for number in (2, 3, 4)]
    assert [trace[1] for trace in found if trace[0] == STEP] == [0, 1, 2, 3, 4]


def test_an_iteration_whose_optimizer_step_a_scaler_skips_is_a_step(traced: Run) -> None:
    """As in the first iterations of a training with float16, until the scale of the gradients is
    small enough.
    """

    def program() -> None:
        loop = Loop()
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for number in range(6):
            loop.optimizer.zero_grad()
            with record_function("batch"):
                pass
            scaler.scale(loop.forward()).backward()
            if number in (1, 2):
                loop.model[0].weight.grad.fill_(float("inf"))
            scaler.step(loop.optimizer)
            scaler.update()

    run = traced(program)
    found = training_traces(run.finish())
    # The scaler's, and the optimizer's in it.
    skipped = ["batch", "step"]
    stepped = ["batch", "step", "step"]
    assert found == [
        (STEP, number, skipped if number in (1, 2) else stepped) for number in range(6)
    ]
    assert run.slices() == steps_of(found)


class Asks(nn.Linear):  # type: ignore[misc, name-defined]
    """A layer that asks for the current span, or opens one."""

    def __init__(self, asks: Callable[[], object]) -> None:
        super().__init__(3, 3)
        self.asks = asks

    def forward(self, x: Any) -> Any:
        self.asks()
        return super().forward(x)


@pytest.mark.parametrize("opens", ["a span", "nothing"])
@pytest.mark.parametrize("drains", ["never", "in the step", "in the model"])
def test_a_step_in_which_the_program_asks_for_the_current_span_is_one_trace(
    traced: Run, opens: str, drains: str
) -> None:
    """As an instrumentation of logging does for each line."""
    current: list[trace.SpanContext] = []

    def drain() -> None:
        with profile():  # a capture that begins or ends drains
            pass

    def asks() -> None:
        if drains == "in the model":
            drain()
        if opens == "nothing":
            current.append(trace.get_current_span().get_span_context())
            return
        with run.provider.get_tracer("program").start_as_current_span("teacher") as span:
            current.append(span.get_span_context())

    run = traced(lambda: None)
    loop = Loop()
    loop.model = nn.Sequential(Asks(asks), nn.ReLU())
    loop.optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.1)
    for _ in range(3):
        loop.optimizer.zero_grad()
        with record_function("batch"):
            X.clone()
            trace.get_current_span()
        if drains == "in the step":
            drain()
        loop.forward().backward()
        loop.optimizer.step()
    batch = ["batch", "teacher"] if opens == "a span" else ["batch"]
    steps = [a_step(number, *batch) for number in range(3)]
    found = training_traces(run.finish())
    assert found == steps
    if opens == "nothing":
        spans = {span.context.span_id: span for span in run.exporter.get_finished_spans()}
        roots = [spans[one.span_id].context.trace_id for one in current]
        assert roots == [one.trace_id for one in current]
        assert len(set(roots)) == 3


def test_a_span_in_a_step_hangs_in_the_range_that_it_was_opened_in(traced: Run) -> None:
    run = traced(lambda: None)
    loop = Loop()
    tracer = run.provider.get_tracer("program")
    loop.train(1)
    for _ in range(2):
        with record_function("batch"), tracer.start_as_current_span("inside"):
            X.clone()
        loop.train(1)
    run.instrumentor.uninstrument()
    spans = {span.context.span_id: span for span in run.exporter.get_finished_spans()}
    inside = [span for span in spans.values() if span.name == "inside"]
    enclosing = [spans[span.parent.span_id] for span in inside if span.parent]
    assert [span.name for span in enclosing] == ["batch", "batch"]
    assert [spans[span.parent.span_id].name for span in enclosing if span.parent] == [STEP, STEP]


def test_a_flush_delivers_all_that_ran_before_it(traced: Run) -> None:
    def program() -> None:
        loop = Loop()
        loop.train()
        loop.validate(5)
        loop.forward()

    run = traced(program)
    assert run.provider.force_flush()
    spans = run.exporter.get_finished_spans()
    assert {span.parent.span_id for span in spans if span.parent} <= {
        span.context.span_id for span in spans
    }
    assert names_of(span.name for span in spans).count("validated") == 5
    assert run.instrumentor.counters()["waiting"] == 0
    assert [trace[1] for trace in run.finish() if trace[0] == STEP] == [0, 1, None]


def test_a_thread_that_was_flushed_in_its_steps_still_trains(traced: Run) -> None:
    def program() -> None:
        loop = Loop()
        loop.train()
        for _ in range(5):
            loop.optimizer.zero_grad()
            OtelRecordFunctionInstrumentor().flush(PATIENCE_S)
            loop.train(1)

    found = traced(program).finish()
    # What makes the model is the thread's where it is drained before there is an optimizer.
    assert {trace[0] for trace in found} <= {STEP, "MainThread"}
    assert training_traces(found) == [a_step(number) for number in range(7)]


class Asked(StaticSampler):
    """A sampler that takes all, and remembers what it was asked about."""

    def __init__(self) -> None:
        super().__init__(Decision.RECORD_AND_SAMPLE)
        self.names: dict[int, str] = {}
        """The name of each trace's root, by the trace's id."""

    def should_sample(
        self, parent_context: Any, trace_id: int, name: str, *rest: Any, **more: Any
    ) -> SamplingResult:
        self.names.setdefault(trace_id, name)
        return super().should_sample(parent_context, trace_id, name, *rest, **more)


@without_pauses()
def test_a_sampler_is_asked_about_roots_by_their_names(
    instrumentor: OtelRecordFunctionInstrumentor,
) -> None:
    """Also before the drain, when a span of the program's is opened inside a range."""

    class Model(nn.Linear):
        def forward(self, x: Any) -> Any:
            with traces.tracer.start_as_current_span("in the model"):
                return super().forward(x + 1)

    sampler = Asked()
    traces = Traces(sampler)
    model = Model(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.no_grad():
        for _ in range(2):
            model(torch.ones(2, 3))
    with record_function("block"), traces.tracer.start_as_current_span("in the block"):
        torch.ones(2)
    for _ in range(3):
        optimizer.zero_grad()
        traces.instrumentor.flush(PATIENCE_S)
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    traces.instrumentor.uninstrument()
    roots = {
        span.context.trace_id: span.name
        for span in traces.exporter.get_finished_spans()
        if span.parent is None
    }
    assert roots == {trace_id: sampler.names[trace_id] for trace_id in roots}
    assert {name.rpartition("_")[0] or name for name in roots.values()} == {
        "MainThread",
        "module call: Model",
        STEP,
    }


def test_steps_in_a_span_of_an_epoch(traced: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    # A span that is heard of late, as its thread had to wait, is a slice beside the thread.
    monkeypatch.setattr("otel_recfn.support.span_log.LONGEST_DELAY_NS", int(PATIENCE_S * 1e9))
    made = traced(lambda: None)
    tracer = made.provider.get_tracer("program")
    loop = Loop()
    for _ in range(2):
        with tracer.start_as_current_span("epoch"):
            loop.train()
            loop.validate()
    first, second = training_traces(made.finish())
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
    assert [(name, number) for name, number, _ in training_traces(run.finish())] == [
        ("train", 0),
        ("train", 1),
    ]
    assert run.slices() == []
