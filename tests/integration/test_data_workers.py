"""What the workers of a DataLoader do stands below the span in which their iterator was made, or is linked to it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytestmark = pytest.mark.torch

PROGRAM = """
import json, os, sys
import torch
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from otel_recfn import OtelRecordFunctionInstrumentor, record_function

class ToFile(SpanExporter):
    def export(self, spans):
        for span in spans:
            links = [(link.context.trace_id, link.context.span_id) for link in span.links]
            parent = span.parent.span_id if span.parent is not None else None
            line = json.dumps([os.getpid(), span.name, span.context.trace_id, span.context.span_id, parent, links,
                               span.attributes.get("recfn.unit.folded.count", 0)])
            with open("spans.txt", "a") as file:
                file.write(line + "\\n")
        return SpanExportResult.SUCCESS

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ToFile()))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer("program")
OtelRecordFunctionInstrumentor().instrument(span_budget=%(budget)s)

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        with record_function("decode"):
            with %(inside)s:
                return torch.ones(3) * index

loader = torch.utils.data.DataLoader(
    Data(), batch_size=2, num_workers=2, multiprocessing_context="fork", persistent_workers=%(persistent)s
)
def epoch():
    return len(list(loader))
if %(in_span)s:
    with tracer.start_as_current_span("epoch"):
        assert epoch() == 4
else:
    assert epoch() == 4
del loader
"""


class Span(NamedTuple):
    pid: int
    name: str
    trace_id: int
    span_id: int
    parent: int | None
    links: list[list[int]]
    folded: int


class Loaded:
    """The spans of a program that loads data."""

    def __init__(self, spans: list[Span]) -> None:
        self.spans = spans
        self.epoch = next((span for span in spans if span.name == "epoch"), None)
        of_workers = [span for span in spans if span.name.startswith("DataLoader worker ")]
        self.workers = sorted(of_workers, key=lambda span: span.name)

    def below(self, above: Span) -> list[Span]:
        return [span for span in self.spans if span.parent == above.span_id]

    def orphans(self) -> list[Span]:
        sent = {(span.trace_id, span.span_id) for span in self.spans}
        return [span for span in self.spans if span.parent is not None and (span.trace_id, span.parent) not in sent]


@pytest.fixture(params=[1000, None], ids=["folded", "every range"])
def load(request: pytest.FixtureRequest, run_with_torch: Callable[..., Any], tmp_path: Path) -> Callable[..., Loaded]:
    def loaded(*, persistent: bool, in_span: bool = True, inside: str = "torch.no_grad()") -> Loaded:
        run_with_torch(PROGRAM % {"budget": request.param, "persistent": persistent, "in_span": in_span, "inside": inside})
        return Loaded([Span(*json.loads(line)) for line in (tmp_path / "spans.txt").read_text().splitlines()])

    return loaded


def test_workers_of_one_iterator_are_children_of_the_span_it_was_made_in(load: Callable[..., Loaded]) -> None:
    found = load(persistent=False)
    assert [span.name for span in found.workers] == ["DataLoader worker 0", "DataLoader worker 1"]
    assert found.epoch is not None
    assert {(span.trace_id, span.parent) for span in found.workers} == {(found.epoch.trace_id, found.epoch.span_id)}
    for worker in found.workers:
        assert worker.folded or "decode" in [span.name for span in found.below(worker)]
    assert not found.orphans()


def test_workers_that_outlive_their_iterator_have_traces_that_link_to_the_span(load: Callable[..., Loaded]) -> None:
    found = load(persistent=True)
    assert [span.name for span in found.workers] == ["DataLoader worker 0", "DataLoader worker 1"]
    assert found.epoch is not None
    for worker in found.workers:
        assert (worker.parent, worker.links) == (None, [[found.epoch.trace_id, found.epoch.span_id]])
    assert len({span.trace_id for span in found.spans}) == 3
    assert not found.orphans()


@pytest.mark.parametrize("persistent", [False, True])
def test_what_the_program_opens_in_a_worker_lies_in_its_range(load: Callable[..., Loaded], persistent: bool) -> None:
    found = load(persistent=persistent, inside='tracer.start_as_current_span("own")')
    by_id = {(span.trace_id, span.span_id): span.name for span in found.spans}
    own = [span for span in found.spans if span.name == "own"]
    assert len(own) == 8
    assert {by_id.get((span.trace_id, span.parent or 0)) for span in own} == {"decode"}
    assert not found.orphans()
