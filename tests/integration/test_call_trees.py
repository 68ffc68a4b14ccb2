"""What the spans of a request or a step show of PyTorch: the tree of calls, down to operators,
and what stands out in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from opentelemetry.sdk.trace import ReadableSpan  # noqa: E402
from opentelemetry.trace import StatusCode  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from helpers.exported_traces import Traces  # noqa: E402
from helpers.timeouts import PATIENCE_S  # noqa: E402

pytestmark = pytest.mark.torch


CALLS, LAYERS, WIDTH = 20, 3, 256


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(self.attention(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x)


class Program(Traces):
    """One that is instrumented anew for each kind of requests."""

    def __init__(self) -> None:
        super().__init__(budgets={})

    def requests(
        self, count: int, work: Callable[[], object], fails: bool = False, **settings: Any
    ) -> Sequence[ReadableSpan]:
        """Our spans of the last one; the first three of a name are told in more detail."""
        self.instrumentor.uninstrument()
        self.instrumentor.instrument(tracer_provider=self.provider, **settings)
        for number in range(count):
            self.exporter.clear()
            with self.tracer.start_as_current_span("request") as span:
                work()
                if fails and number == count - 1:
                    span.set_status(StatusCode.ERROR)
            assert self.instrumentor.flush(PATIENCE_S)
        return [span for span in self.exporter.get_finished_spans() if span.name != "request"]


@pytest.fixture
def program() -> Iterator[Program]:
    made = Program()
    yield made
    made.instrumentor.uninstrument()


def generation() -> Callable[[], None]:
    model = Model().eval()
    x = torch.ones(64, WIDTH)

    def write() -> None:
        with torch.no_grad():
            for _ in range(CALLS):
                model(x)

    write()
    return write


def count_ranges(spans: Sequence[ReadableSpan]) -> int:
    """How many ranges they are and stand for."""
    attributes: list[Mapping[str, Any]] = [span.attributes or {} for span in spans]
    return sum("recfn.event_id" in one for one in attributes) + sum(
        one.get("recfn.unit.folded.count", 0) for one in attributes
    )


def by_path(spans: Sequence[ReadableSpan]) -> dict[str, Mapping[str, Any]]:
    """The attributes of each by the names of what it lies in and its own: a sum of calls is no
    call.
    """
    by_id = {span.context.span_id: span for span in spans}

    def path(span: ReadableSpan) -> str:
        above = by_id.get(span.parent.span_id) if span.parent is not None else None
        return f"{path(above)} > {span.name}" if above is not None else span.name

    return {path(span): span.attributes or {} for span in spans}


def is_sum_path(path: str) -> bool:
    return all(name.endswith(" (folded)") for name in path.split(" > "))


def test_a_generation_shows_its_operators(program: Program) -> None:
    write = generation()
    # As an ordinary one, however busy the machine is.
    spans = program.requests(6, write, span_budget=50)
    sums = {path: one for path, one in by_path(spans).items() if is_sum_path(path)}
    counts = {
        path.replace(" (folded)", ""): one["aggregation.span_count"] for path, one in sums.items()
    }
    assert counts["Model"] + sum(one.name == "Model" for one in spans) == CALLS
    assert counts["Model > blocks > blocks.*"] == LAYERS * counts["Model"]
    assert "aten::addmm (folded)" in {span.name for span in spans}
    blocks = sums["Model (folded) > blocks (folded) > blocks.* (folded)"]
    assert (blocks["recfn.module"], blocks["recfn.module.class"]) == ("blocks.*", "Block")
    assert len(spans) <= 50


@pytest.mark.parametrize("fails", [False, True])
def test_all_of_a_request_is_told_once(program: Program, fails: bool) -> None:
    write = generation()
    spans = program.requests(6, write, fails)
    counters = program.instrumentor.counters()
    assert {span.name.removesuffix(" (folded)") for span in spans} >= {
        "Model",
        "blocks",
        "aten::addmm",
    }
    assert count_ranges(spans) == count_ranges(program.requests(1, write, fails, detail="all"))
    assert counters["recorded"] + counters["added"] == counters["exported"] + counters["folded"]


def test_the_span_seen_first_names_what_took_most(program: Program) -> None:
    functions = [torch.sin, torch.cos, torch.tan, torch.exp, torch.sqrt, torch.abs]
    large = torch.ones(300, 300)
    small = torch.ones(4)

    def work() -> None:
        for number in range(400):  # so many paths that some are left out
            with torch.profiler.record_function(f"part {number}"):
                for function in functions:
                    function(small)
        large @ large

    spans = program.requests(5, work)
    first = max(spans, key=lambda span: span.end_time - span.start_time)
    top = [one for span in spans for one in (span.attributes or {}).get("recfn.unit.top", ())]
    assert first.attributes is not None
    assert "recfn.unit.top" in first.attributes
    assert top
    assert not [one for one in top if one.startswith("(other)")]


def test_a_backward_node_is_one_span_with_the_range_around_it(program: Program) -> None:
    model = nn.Linear(64, 64)
    x = torch.ones(20_000, 64)

    def train() -> None:
        model(x).pow(2).mean().backward()

    spans = program.requests(2, train)
    assert not [span.name for span in spans if span.name.startswith("autograd::engine")]
    (node,) = [span for span in spans if span.name == "PowBackward0"]
    (forward,) = [
        span
        for span in spans
        if span.name == "aten::pow" and "recfn.sequence_nr" in (span.attributes or {})
    ]
    assert node.attributes is not None
    assert node.attributes["recfn.scope"] == "BACKWARD_FUNCTION"
    assert [link.context.span_id for link in node.links] == [forward.context.span_id]
    everything = program.requests(1, train, detail="all")
    assert count_ranges(spans) == count_ranges(everything)
    enclosing = [
        span
        for span in everything
        if span.name == "autograd::engine::evaluate_function: PowBackward0"
    ]
    assert [span.name for span in everything if span.parent == enclosing[0].context] == [
        "PowBackward0"
    ]


def test_with_the_names_of_torch_there_are_both(program: Program) -> None:
    model = nn.Linear(64, 64)
    x = torch.ones(20_000, 64)
    spans = program.requests(2, lambda: model(x).pow(2).mean().backward(), span_names="torch")
    names = {span.name for span in spans}
    assert {"autograd::engine::evaluate_function: PowBackward0", "PowBackward0"} <= names
