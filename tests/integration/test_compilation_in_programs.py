"""Programs of their own that compile: their caches have the same keys as without us, and nothing
is imported for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
from helpers.compiled_forms import VERSION

pytestmark = pytest.mark.torch

PROGRAM = """
import sys, torch
from otel_recfn import OtelRecordFunctionInstrumentor
from otel_recfn.sinks.in_memory import InMemorySink

sink, instrumentor = InMemorySink(), OtelRecordFunctionInstrumentor()
instrumentor.instrument(sinks=[sink])
torch.ones(2) + 1
print("torch._dynamo" in sys.modules)
torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
instrumentor.uninstrument()
print([event.name for event in sink.events() if "torch.compile" in event.name])
"""


INDUCTOR = """
import json, sys, torch
from torch._dynamo.utils import counters
from otel_recfn import OtelRecordFunctionInstrumentor
from otel_recfn.sinks.in_memory import InMemorySink

def function(x):
    return (x + 1).relu()

sink, instrumentor = InMemorySink(), OtelRecordFunctionInstrumentor()
if sys.argv[1] == "ours":
    instrumentor.instrument(sinks=[sink])
x = torch.ones(8, requires_grad=True)
torch.compile(function)(x).sum().backward()
instrumentor.uninstrument()
compilations = [event for event in sink.events() if event.name.startswith("torch.compile: ")]
told = [json.loads(event.attributes) for event in compilations]
print(json.dumps({"counters": counters, "gradient": x.grad.tolist(), "told": told}))
"""


@pytest.mark.skipif(VERSION < (2, 13), reason="this PyTorch announces phases itself")
@pytest.mark.timeout(600)
def test_inductors_cache_has_the_same_keys_with_us_and_without(
    run_with_torch: Callable[..., Any], tmp_path: Path
) -> None:
    def ran(whose: str) -> Any:
        done = run_with_torch(INDUCTOR, whose, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"))
        return json.loads(done.stdout.splitlines()[-1])

    ours = ran("ours")
    plain = ran("nobody's")
    assert {said.get("recfn.compile.cache.inductor") for said in ours["told"]} == {"miss"}
    assert plain["counters"]["aot_autograd"]["autograd_cache_hit"] == 1
    assert plain["gradient"] == ours["gradient"]


def test_nothing_is_imported_for_it(run_with_torch: Callable[..., Any]) -> None:
    assert run_with_torch(PROGRAM).stdout.splitlines()[-2:] == [
        "False",
        "['torch.compile: <lambda>']",
    ]
