"""``torch.compile`` in processes of their own: whatever is imported first, parts of PyTorch missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.torch

Run = Callable[..., Any]
USE = """
import logging, sys
outside = record_function("outside")
@record_function("decorated")
def decorated(x):
    with record_function("inside"), outside:
        return x + 1
graphs = []
def backend(module, examples):
    graphs.append(module)
    return module.forward
def check(fullgraph=True):
    assert torch.equal(torch.compile(decorated, backend=backend, fullgraph=fullgraph)(torch.ones(2)), torch.ones(2) + 1)
"""
ONE_GRAPH = "check()\nassert len(graphs) == 1\n"


@pytest.mark.parametrize(
    ("imports", "run"),
    [
        ("import torch; from otel_recfn import record_function", "run_with_torch"),
        ("from otel_recfn import record_function; import torch", "run_program"),
        ("import torch, torch._dynamo; from otel_recfn import record_function", "run_with_dynamo"),
        ("from otel_recfn import record_function; import torch, torch._dynamo", "run_program"),
    ],
)
def test_whatever_is_imported_first(imports: str, run: str, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(run)(f"{imports}\n{USE}{ONE_GRAPH}")


def test_a_name_that_is_resolved_while_it_is_compiled(run_with_dynamo: Run) -> None:
    run_with_dynamo("""
import torch, otel_recfn
def function(x):
    with otel_recfn.record_function("first use"):
        return x + 1
assert "record_function" not in vars(otel_recfn)
assert torch.equal(torch.compile(function, backend="eager", fullgraph=True)(torch.ones(2)), torch.ones(2) + 1)
""")


def test_what_torch_imports_late_stays_so(run_with_torch: Run) -> None:
    run_with_torch("""
import sys, torch
before = {name for name in sys.modules if name.startswith("torch.")}
from otel_recfn import RecordFunction, record_function
assert {name for name in sys.modules if name.startswith("torch.")} == before
""")


def test_a_part_that_is_missing_costs_what_needs_it(run_with_dynamo: Run) -> None:
    done = run_with_dynamo(f"""
import torch, torch._dynamo.source as source
kept = source.AttrSource
del source.AttrSource
from otel_recfn import record_function
source.AttrSource = kept
{USE}
def function(x):
    with record_function("inside"):
        return x + 1
torch.compile(function, backend=backend, fullgraph=True)(torch.ones(2))
assert len(graphs) == 1
check(fullgraph=False)
""")
    assert done.stderr.count("this PyTorch's torch.compile works otherwise") == 1
    assert "AttrSource" in done.stderr
