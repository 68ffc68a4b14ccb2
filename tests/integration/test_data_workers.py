"""What a program opens in the workers of a DataLoader lies in their ranges; where these stand is
in the test of exports.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

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
