"""What a program opens in the workers of a DataLoader lies in their ranges, and samples there have
the item that is made; where these ranges stand is in the test of exports.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from helpers.trace_files import samples_in

pytestmark = pytest.mark.torch

PROGRAM = """
import json
import torch
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from otel_recfn import OtelRecordFunctionInstrumentor, record_function

class ToFile(SpanExporter):
    def export(self, spans):
        for span in spans:
            parent = span.parent.span_id if span.parent is not None else None
            line = json.dumps([span.name, span.context.trace_id, span.context.span_id, parent])
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
            with tracer.start_as_current_span("own"):
                return torch.ones(3) * index

loader = torch.utils.data.DataLoader(
    Data(), batch_size=2, num_workers=2, multiprocessing_context="fork",
    persistent_workers=%(persistent)s,
)
with tracer.start_as_current_span("epoch"):
    assert len(list(loader)) == 4
del loader
"""


class Span(NamedTuple):
    name: str
    trace_id: int
    span_id: int
    parent: int | None


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("budget", [1000, None], ids=["folded", "every range"])
def test_what_the_program_opens_in_a_worker_lies_in_its_range(
    run_with_torch: Callable[..., Any], tmp_path: Path, budget: int | None, persistent: bool
) -> None:
    run_with_torch(PROGRAM % {"budget": budget, "persistent": persistent})
    spans = [Span(*json.loads(line)) for line in (tmp_path / "spans.txt").read_text().splitlines()]
    by_id = {(span.trace_id, span.span_id): span.name for span in spans}
    own = [span for span in spans if span.name == "own"]
    assert len(own) == 8
    assert {by_id.get((span.trace_id, span.parent or 0)) for span in own} == {"decode"}
    assert not [
        span
        for span in spans
        if span.parent is not None and (span.trace_id, span.parent) not in by_id
    ]


SAMPLED = """
import torch
from torch.utils.data import DataLoader, Dataset, Subset
from otel_recfn import OtelRecordFunctionInstrumentor, profile

OtelRecordFunctionInstrumentor().instrument(chrome_trace="trace.json", outside=True)

def take_long():
    with profile() as prof:
        torch.ones(3)  # from its first range on a thread is followed
        while not prof.outside():
            pass

class Pictures(Dataset):
    def __getitem__(self, index):
        if index == 9:
            take_long()
        return torch.ones(3)

    def __len__(self):
        return 16

for batch in DataLoader(%(dataset)s, batch_size=%(batch_size)s, num_workers=%(workers)d):
    pass
"""
ODD = "Subset(Pictures(), range(1, 16, 2))"


@pytest.mark.parametrize(
    ("dataset", "batch_size", "workers", "item"),
    [
        ("Pictures()", 2, 0, "9"),
        ("Pictures()", 2, 1, "9 (worker 0)"),
        ("Pictures()", None, 0, "9"),
        (ODD, 2, 0, "4"),
        (ODD, None, 1, "4 (worker 0)"),
    ],
)
def test_a_sample_has_the_item_that_a_loader_makes(
    run_with_torch: Callable[..., Any],
    tmp_path: Path,
    dataset: str,
    batch_size: int | None,
    workers: int,
    item: str,
) -> None:
    """Its index in the loader's own dataset, which may be a part of another one."""
    loader = {"dataset": dataset, "batch_size": batch_size, "workers": workers}
    run_with_torch(SAMPLED % loader)
    samples = [event["args"] for path in tmp_path.glob("trace*.json") for event in samples_in(path)]
    found = {args["Item"] for args in samples if "take_long" in args["Sampled function"]}
    assert found == {item}
