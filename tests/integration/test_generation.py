"""Generation: one token after the other, in spans, profiles and Chrome traces; and what
generates nothing.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import json
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan

from helpers.exported_traces import Traces
from helpers.timeouts import PATIENCE_S
from helpers.trace_files import read_trace
from otel_recfn import profile, record_function, step

torch = pytest.importorskip("torch")
from helpers.torch_programs import run_together  # noqa: E402

pytestmark = pytest.mark.torch
nn = torch.nn
PREFIX = "recfn.generation."


class Model(nn.Module):  # type: ignore[misc, name-defined]
    """Takes token ids, or a vector for each."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(50, 4)
        self.head = nn.Linear(4, 50)

    def forward(self, tokens: Any, mask: Any = None) -> Any:
        # A range that the program saw as the current span is a span, and so are those around it.
        # Otherwise a call would be none in a request that took a thousand times as long, which on
        # a busy machine may be any.
        trace.get_current_span()
        return self.head(self.letters(tokens) if tokens.dim() == 2 else tokens)


def calls(model: Any, lengths: Sequence[int]) -> None:
    """Calls with so many tokens, one after the other, as generation does."""
    with torch.no_grad():
        for length in lengths:
            model(torch.ones(2, length, dtype=torch.long))


CACHED = [5, 1, 1, 1]
GROWING = [5, 6, 7, 8, 9]
SLIDING = [3, 4, 5, 5, 5, 5]


@pytest.fixture
def requests() -> Iterator[Traces]:
    made = Traces(budgets={})
    yield made
    made.instrumentor.uninstrument()


def generation_attributes(spans: list[ReadableSpan]) -> list[dict[str, Any]]:
    """What spans say of whole generations, the first one of each trace that does."""
    return [
        dict(span.attributes or {}) for span in spans if PREFIX + "count" in (span.attributes or {})
    ]


def decoded(spans: list[ReadableSpan]) -> int:
    """How many calls decoded."""
    return sum(span.name == "decode" for span in spans)


@pytest.mark.parametrize(
    "lengths", [CACHED, GROWING, SLIDING], ids=["with a cache", "without", "in a window"]
)
def test_a_request_says_what_it_generated_and_how_fast(
    requests: Traces, lengths: list[int]
) -> None:
    model = Model()
    requests.serve(lambda: calls(model, lengths))
    requests.serve(lambda: calls(model, lengths))
    spans = requests.spans()
    request = next(span for span in spans if span.name == "request")
    (found, later) = generation_attributes(spans)
    assert later[PREFIX + "phase"] == "prefill"
    assert "prefill: Model" in [span.name for span in spans]
    assert later["recfn.input_shapes"] == (f"[2, {lengths[0]}]",)
    assert not [name for span in spans for name in span.attributes or {} if name.startswith("_")]
    sizes = {"count": 1, "input_tokens": lengths[0], "output_tokens": len(lengths), "batch_size": 2}
    assert (
        {name: found[PREFIX + name] for name in sizes}
        == sizes
        == {name: later[PREFIX + name] for name in sizes}
    )
    first = found[PREFIX + "time_to_first_token_ns"]
    each = found[PREFIX + "time_per_token_ns"]
    assert (
        0
        < first
        < first + each * (len(lengths) - 1)
        <= (request.end_time or 0) - (request.start_time or 0)
    )
    first_trace = [span for span in spans if span.context.trace_id == request.context.trace_id]  # type: ignore[union-attr]
    # That a model generates without a cache is known from then on.
    assert decoded(first_trace) >= len(lengths) - 2
    assert decoded(spans) - decoded(first_trace) == len(lengths) - 1


def generate(model: Any, prompts: Any, lengths: Sequence[int]) -> None:
    """Calls with a prompt, or several, then with one token at a time."""
    with torch.no_grad():
        for length in lengths:
            model(prompts[:, :1].expand(-1, length))


def conventional(spans: list[ReadableSpan]) -> list[dict[str, Any]]:
    """What spans say of generations by OpenTelemetry's conventions."""
    found = [
        {
            name: value
            for name, value in (span.attributes or {}).items()
            if name.startswith("gen_ai")
        }
        for span in spans
    ]
    return [attributes for attributes in found if attributes]


@pytest.mark.parametrize("in_step", [False, True], ids=["below a span", "in a step"])
def test_a_single_sequence_has_the_attributes_of_the_conventions(
    requests: Traces, in_step: bool
) -> None:
    model = Model()

    def serve() -> None:
        with step("write") if in_step else nullcontext():
            generate(model, torch.ones(1, 1, dtype=torch.long), CACHED)

    requests.serve(serve)
    spans = requests.spans()
    (found,) = conventional(spans)
    (own,) = generation_attributes(spans)
    assert found == {
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.response.time_to_first_chunk": own[PREFIX + "time_to_first_token_ns"] / 1e9,
    }


def test_a_batch_of_sequences_has_none_of_them_as_some_tokens_may_be_padding(
    requests: Traces,
) -> None:
    requests.serve(lambda: generate(Model(), torch.ones(2, 1, dtype=torch.long), CACHED))
    spans = requests.spans()
    assert generation_attributes(spans)
    assert not conventional(spans)


def test_calls_that_are_traces_of_their_own_say_nothing_of_the_others(requests: Traces) -> None:
    calls(Model(), CACHED)
    spans = requests.spans()
    assert "module call: decode" in [span.name for span in spans]
    assert not generation_attributes(spans)


def test_every_decoding_call_has_a_range_around_it(tmp_path: Path) -> None:
    model = Model()
    with profile() as prof:
        calls(model, CACHED)
    decoding = [event for event in prof.events() if event.name == "decode"]
    assert [event.step_number for event in decoding] == [2, 3, 4]
    assert len({child.name for event in decoding for child in event.cpu_children}) == 1
    counts = {one.path: one.count for one in prof.tree("module")}
    assert (counts["decode",], counts["decode", "Model"], counts["Model",]) == (3, 3, 1)
    prof.export_chrome_trace(tmp_path / "trace.json")
    slices = [
        event
        for event in read_trace(tmp_path / "trace.json")["traceEvents"]
        if event["name"].startswith("decode")
    ]
    assert [event["name"] for event in slices] == ["decode#2", "decode#3", "decode#4"]
    assert not [event for event in slices if "Attributes" in event["args"]]
    first, *others = [json.loads(event.generation or "{}") for event in decoding]
    assert (first["input_tokens"], first["batch_size"]) == (5, 2)
    assert others == [{}, {}]


def train(model: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for length in (3, 4, 5, 6, 1, 1):
        model(torch.ones(2, length, dtype=torch.long)).sum().backward()
        optimizer.step()


NOTHING: dict[str, Callable[[Any], None]] = {
    "a training loop": train,
    "a classifier": lambda model: calls(model, [5] * 6),
    "features": lambda model: [model.head(torch.ones(2 + n, 4)) for n in range(5)] and None,
}


@pytest.mark.parametrize("program", NOTHING)
def test_what_generates_nothing(requests: Traces, program: str) -> None:
    requests.serve(lambda: NOTHING[program](Model()))
    requests.serve(lambda: NOTHING[program](Model()))
    spans = requests.spans()
    assert len(spans) > 2
    assert not generation_attributes(spans)
    assert not decoded(spans)


def test_requests_that_follow_each_other_are_no_generation(requests: Traces) -> None:
    model = Model()
    for length in (5, 6, 7, 8, 1, 1):
        requests.serve(lambda length=length: calls(model, [length]))  # type: ignore[misc]
    assert not decoded(requests.spans())


def test_requests_may_generate_in_turns_in_one_thread(requests: Traces) -> None:
    model = Model()

    async def request(lengths: list[int]) -> None:
        with requests.tracer.start_as_current_span("request"):
            for length in lengths:
                calls(model, [length])
                await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(request(CACHED), request([4, 1, 1]), request([7]))

    asyncio.run(main())
    sizes = [
        (found[PREFIX + "input_tokens"], found[PREFIX + "output_tokens"])
        for found in generation_attributes(requests.spans())
    ]
    assert sorted(sizes) == [(4, 3), (5, 4)]


def test_a_hundred_requests_may_generate_in_turns_in_one_thread(requests: Traces) -> None:
    model = Model()

    async def request() -> None:
        with requests.tracer.start_as_current_span("request"):
            for length in CACHED:
                calls(model, [length])
                await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(*[request() for _ in range(100)])

    asyncio.run(main())
    assert len(generation_attributes(requests.spans())) == 100


def test_no_request_is_kept_once_it_has_generated(requests: Traces) -> None:
    contexts = list[Any]()

    def serve() -> None:
        calls(Model(), CACHED)
        contexts.append(weakref.ref(otel_context.get_current()))

    requests.serve(serve)
    with step("request"):
        serve()
    requests.spans()
    gc.collect()
    assert [one() for one in contexts] == [None, None]


def test_requests_may_generate_in_threads(requests: Traces) -> None:
    models = Model(), Model()
    works = [partial(requests.serve, partial(calls, model, CACHED)) for model in models]
    run_together(*works)
    assert [
        found[PREFIX + "output_tokens"] for found in generation_attributes(requests.spans())
    ] == [4, 4]


def test_several_generations_of_a_request_are_added_up_and_have_no_times(requests: Traces) -> None:
    requests.serve(lambda: calls(Model(), [*CACHED, 6, 1, 1]))
    (found,) = generation_attributes(requests.spans())
    assert (
        found[PREFIX + "count"],
        found[PREFIX + "input_tokens"],
        found[PREFIX + "output_tokens"],
    ) == (2, 11, 7)
    assert PREFIX + "time_per_token_ns" not in found


def total(spans: list[ReadableSpan], figure: str) -> int:
    """The sum of a figure over all spans, as a backend adds it up."""
    return sum(int((span.attributes or {}).get(PREFIX + figure, 0)) for span in spans)  # type: ignore[arg-type]


@pytest.fixture(params=["normal", "all"])
def traces_at_any_detail(request: pytest.FixtureRequest) -> Iterator[Traces]:
    made = Traces(budgets={"detail": request.param})
    yield made
    made.instrumentor.uninstrument()


def test_a_step_alone_says_what_was_generated_in_it(traces_at_any_detail: Traces) -> None:
    def generate_twice() -> None:
        calls(Model(), [*CACHED, 6, 1, 1])

    with step("two"):
        generate_twice()
    with step("in a thread"):
        thread = threading.Thread(target=contextvars.copy_context().run, args=(generate_twice,))
        thread.start()
        thread.join(PATIENCE_S)
    spans = traces_at_any_detail.spans()
    for name in ("two", "in a thread"):
        found = next(dict(span.attributes or {}) for span in spans if span.name == name)
        assert [
            found[PREFIX + figure] for figure in ("count", "input_tokens", "output_tokens")
        ] == [2, 11, 7]
        assert PREFIX + "time_to_first_token_ns" not in found
    assert [total(spans, figure) for figure in ("count", "input_tokens", "output_tokens")] == [
        4,
        22,
        14,
    ]


def test_of_a_request_in_a_step_the_prefill_says_it(requests: Traces) -> None:
    with step("around"):
        requests.serve(lambda: calls(Model(), CACHED))
    spans = requests.spans()
    assert total(spans, "output_tokens") == 4
    assert [found[PREFIX + "phase"] for found in generation_attributes(spans)] == ["prefill"]


def test_the_time_to_the_first_token_in_a_step_is_from_its_begin(requests: Traces) -> None:
    model = Model()
    with step("generate"):
        with record_function("prepare"):
            model.head(torch.ones(4, 4))
        calls(model, CACHED)
    spans = {span.name: span for span in requests.spans()}
    prefill = spans["prefill: Model"]
    begun = spans["generate"]
    measured: Any = (begun.attributes or {})[PREFIX + "time_to_first_token_ns"]
    assert (
        (prefill.start_time or 0) - (begun.start_time or 0)
        < measured
        <= (begun.end_time or 0) - (begun.start_time or 0)
    )


def test_where_each_token_is_a_step_the_calls_are_told_apart(requests: Traces) -> None:
    model = Model()

    def serve() -> None:
        for number, length in enumerate(CACHED):
            with step("token", number):
                calls(model, [length])

    requests.serve(serve)
    assert decoded(requests.spans()) == 3


def test_vectors_of_tokens_and_named_arguments_count_too(requests: Traces) -> None:
    model = Model().eval()

    def serve() -> None:
        for length in CACHED:
            model(mask=None, tokens=torch.ones(2, length, 4))

    requests.serve(serve)
    (found,) = generation_attributes(requests.spans())
    assert found[PREFIX + "input_tokens"] == 5
    assert found["recfn.input_shapes"] == ("[2, 5, 4]",)


def test_a_call_that_fails_is_told_as_ever(requests: Traces) -> None:
    model = Model()

    def serve() -> None:
        calls(model, CACHED)
        with pytest.raises(RuntimeError), torch.no_grad():
            model(torch.ones(2, 1, dtype=torch.long).float())

    requests.serve(serve)
    assert len(generation_attributes(requests.spans())) == 1


def test_the_programs_own_modes_and_tensors_see_nothing_of_us(requests: Traces) -> None:
    from torch.overrides import TorchFunctionMode

    class Noted(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(function)
            return function(*args, **(kwargs or {}))

    class Own(torch.Tensor):  # type: ignore[misc, name-defined]
        @classmethod
        def __torch_function__(
            cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(function)
            return super().__torch_function__(function, types, args, kwargs or {})

    model = nn.Identity()
    seen = list[Any]()

    def serve() -> None:
        model(torch.ones(2, 3).as_subclass(Own))
        with Noted():
            model(torch.ones(2, 3))

    requests.serve(serve)
    assert [function.__name__ for function in seen if function is not torch.ones] == []
    assert len(requests.spans()) > 2


def symbolic_input() -> tuple[Any, Any]:
    """A tensor whose sizes are symbols, and what holds the guards of these."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    shapes = ShapeEnv()
    sizes = StatelessSymbolicContext(
        dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.DYNAMIC, DimDynamic.STATIC]
    )
    mode = FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True)
    return shapes, mode.from_tensor(torch.ones(3, 5, 4), symbolic_context=sizes)


def test_inputs_without_plain_sizes_are_not_told_and_cost_no_module_calls(requests: Traces) -> None:
    (shapes, symbolic) = symbolic_input()
    (torch_shapes, alone) = symbolic_input()
    model = nn.Identity()

    def serve() -> None:
        with torch.no_grad():
            model(torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)]))
            for _ in range(2):
                torch.func.vmap(model)(symbolic)
                torch.func.vmap(lambda tensor: tensor)(alone)

    requests.serve(serve)
    requests.serve(lambda: model(torch.ones(2, 3)))
    found = [(span.attributes or {}).get("recfn.input_shapes") for span in requests.spans()]
    assert [each for each in found if each is not None] == [("[2, 3]",)]
    assert [guard.expr for guard in shapes.guards] == [guard.expr for guard in torch_shapes.guards]


def test_transformers_generate(requests: Traces) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=8, vocab_size=100, bos_token_id=0, eos_token_id=1
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    ids = torch.ones(2, 6, dtype=torch.long)
    requests.serve(
        lambda: model.generate(
            ids, max_new_tokens=5, min_new_tokens=5, do_sample=False, pad_token_id=0
        )
    )
    (found,) = generation_attributes(requests.spans())
    sizes = {"count": 1, "input_tokens": 6, "output_tokens": 5, "batch_size": 2}
    assert {name: found[PREFIX + name] for name in sizes} == sizes
