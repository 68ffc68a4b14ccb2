"""Activation checkpointing stops the recomputation of a block by an exception: no failure of
what runs in the block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan

from helpers.exported_traces import Traces
from otel_recfn import record_function, step

torch = pytest.importorskip("torch")
checkpointing = pytest.importorskip("torch.utils.checkpoint")

pytestmark = pytest.mark.torch

Block = Callable[[Any], Any]
LAYERS: Any = None
"""What blocks run."""


@pytest.fixture(autouse=True, scope="module")
def layers() -> Iterator[None]:
    """Gone afterwards: modules are numbered among those that live."""
    global LAYERS
    LAYERS = torch.nn.Sequential(
        torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4), torch.nn.Sigmoid()
    )
    yield
    LAYERS = None


def in_range(x: Any) -> Any:
    with record_function("inside"):
        return LAYERS(x)


def in_step(x: Any) -> Any:
    with step("inside"):
        return LAYERS(x)


class Inside(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return LAYERS(x)


BLOCKS = [
    in_range,
    in_step,
    Inside(),
]


def train(block: Block) -> None:
    x = torch.ones(2, 4, requires_grad=True)
    checkpointing.checkpoint(block, x, use_reentrant=False).sum().backward()


def failed(spans: list[ReadableSpan]) -> set[str]:
    return {span.name for span in spans if span.status.status_code is trace.StatusCode.ERROR}


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: getattr(block, "__name__", "module"))
def test_a_recomputation_that_is_stopped_has_not_failed(traces: Traces, block: Block) -> None:
    with step("train"):
        train(block)
    spans = traces.spans()
    inside = [span for span in spans if "inside" in span.name.lower()]
    assert len(inside) == 2, "computed, and computed again"
    assert [span.events for span in inside] == [(), ()]
    assert failed(spans) == set()


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: getattr(block, "__name__", "module"))
def test_a_block_that_fails_has_failed(
    traces: Traces, block: Block, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_x: Any) -> Any:
        raise RuntimeError("really")

    monkeypatch.setattr(LAYERS, "forward", fail)
    with pytest.raises(RuntimeError, match="really"), step("train"):
        train(block)
    spans = traces.spans()
    (inside,) = [span.name for span in spans if "inside" in span.name.lower()]
    assert {"train", inside} <= failed(spans)


LATE = """
import sys
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from otel_recfn import OtelRecordFunctionInstrumentor, RecordScope, record_function
exporter, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
OtelRecordFunctionInstrumentor().instrument(
    tracer_provider=provider, scopes={RecordScope.USER_SCOPE}, modules=False, span_budget=None
)
with record_function("before"):
    pass
assert "torch" not in sys.modules
import torch
from torch.utils.checkpoint import checkpoint
def block(x):
    with record_function("inside"):
        return (x * 2).sigmoid().sigmoid()
checkpoint(block, torch.ones(2, requires_grad=True), use_reentrant=False).sum().backward()
OtelRecordFunctionInstrumentor().uninstrument()
inside = [span for span in exporter.get_finished_spans() if span.name == "inside"]
print([(span.name, span.status.status_code.name) for span in inside])
"""


def test_torch_may_be_imported_late(run_program: Callable[..., Any]) -> None:
    """Also where nothing of ours waits for PyTorch to record it."""
    assert run_program(LATE).stdout == "[('inside', 'UNSET'), ('inside', 'UNSET')]\n"
