"""The finding that operators compute in float64, on made-up ranges."""

from __future__ import annotations

import json

import pytest
from recorded_ranges import Ran, process

from otel_recfn.model.events import EventSource
from otel_recfn.report.finding import Finding
from otel_recfn.report.findings import findings
from otel_recfn.report.recording import Recording


def operator(name: str, us: int, *dtypes: str) -> Ran:
    return Ran(f"aten::{name}", us, (), {"dtypes": json.dumps(dtypes, separators=(",", ":"))})


def found(*ran: Ran) -> Finding | None:
    every = findings([Recording([process(*ran)])])
    return next((finding for finding in every if finding.rule == "double"), None)


MUL = operator("mul", 300, "float32", "float64")
NORM = Ran("nn.Module: Norm_0", 300, (MUL,), {"source": EventSource.MODULE})
MM = operator("mm", 300, "float32", "float32")


def test_the_module_is_named_that_computes_in_float64() -> None:
    finding = found(NORM, MM, NORM, MM)
    assert finding is not None
    assert finding.serious
    assert finding.share == pytest.approx(1 / 2)
    assert "2 operators were given tensors of float64, and took 600 us" in finding.text
    assert "aten::mul in nn.Module: Norm_0" in finding.text


def test_a_program_that_computes_everything_in_float64_wants_it() -> None:
    finding = found(operator("mm", 300, "float64", "float64"), operator("to", 10, "float32"))
    assert finding is not None
    assert not finding.serious


@pytest.mark.parametrize(
    "ran",
    [MM, Ran("aten::mm", 300), operator("to", 300, "float64"), operator("item", 90, "float64")],
)
def test_casts_and_other_dtypes_are_no_such_work(ran: Ran) -> None:
    assert found(ran) is None
