"""The finding that backward passes run parts of the forward pass again, on made-up ranges."""

from __future__ import annotations

import pytest
from recorded_ranges import Ran, process

from otel_recfn.model.events import NODES_PREFIX, EventSource, RecordScope
from otel_recfn.report.finding import Finding
from otel_recfn.report.findings import findings
from otel_recfn.report.recording import Recording

BLOCK = Ran("nn.Module: Block_0", 100, (Ran("aten::mm", 90),), {"source": EventSource.MODULE})


def node(name: str, us: int, *inside: Ran) -> Ran:
    scope = {"scope": RecordScope.BACKWARD_FUNCTION}
    return Ran(NODES_PREFIX + name, us, (Ran(name, us, inside, scope),))


def found(*ran: Ran) -> Finding | None:
    every = findings([Recording([process(*ran)])])
    return next((finding for finding in every if finding.rule == "recompute"), None)


@pytest.mark.parametrize(("backward_us", "is_found"), [(700, True), (950, False)])
def test_a_module_in_a_backward_pass_runs_again(backward_us: int, is_found: bool) -> None:
    finding = found(BLOCK, node("MmBackward0", backward_us, BLOCK))
    assert (finding is not None) == is_found
    if finding is not None:
        assert finding.share == pytest.approx(1 / 8)
        assert not finding.serious
        assert "1 call in 100 us; most of it was nn.Module: Block_0 in MmBackward0" in finding.text


@pytest.mark.parametrize(("backward_us", "serious"), [(190, True), (210, False)])
def test_it_is_serious_from_a_third_of_the_steps(backward_us: int, serious: bool) -> None:
    """Whatever the program does between steps."""
    step = Ran(
        "train",
        100 + backward_us,
        (BLOCK, node("MmBackward0", backward_us, BLOCK)),
        {"source": EventSource.STEP},
    )
    finding = found(*[step, Ran("aten::to", 100)] * 4)
    assert finding is not None
    assert finding.serious == serious
    assert "of the steps' time" in finding.text


def test_time_that_was_worked_counts_where_it_is_known() -> None:
    """Blocks that wait for a core of other programs are none the slower."""
    block = {"source": EventSource.MODULE, "cpu_time_ns": 30_000}
    slow = Ran("nn.Module: Block_0", 100, (), block)
    step = {"source": EventSource.STEP, "cpu_time_ns": 120_000}
    finding = found(*[Ran("train", 280, (slow, node("MmBackward0", 180, slow)), step)] * 3)
    assert finding is not None
    assert not finding.serious
    assert ", 25% of the steps' time" in finding.text


def test_a_checkpoint_may_call_a_function_without_modules() -> None:
    inner = node("MmBackward0", 300, Ran("aten::mm", 300))
    finding = found(
        Ran("aten::mm", 200), node("CheckpointFunctionBackward", 500, Ran("aten::mm", 200), inner)
    )
    assert finding is not None
    assert finding.share == pytest.approx(2 / 7)


def test_a_block_of_the_program_runs_again() -> None:
    block = Ran("encode", 100, (), {"source": EventSource.RECORD_FUNCTION})
    finding = found(block, node("MmBackward0", 300, block))
    assert finding is not None
    assert finding.share == pytest.approx(1 / 4)


def test_what_runs_in_backward_passes_alone_repeats_nothing() -> None:
    """Hooks of parallel models have blocks there, and functions of one's own call operators."""
    hook = Ran("all gather", 90, (), {"source": EventSource.RECORD_FUNCTION})
    assert found(BLOCK, node("MmBackward0", 300, hook)) is None
    assert found(BLOCK, node("MmBackward0", 300, Ran("aten::mm", 300))) is None


def test_inner_modules_and_inner_nodes_count_once() -> None:
    inner = Ran("nn.Module: Part_0", 60, (), {"source": EventSource.MODULE})
    outer = Ran("nn.Module: Block_0", 100, (inner,), {"source": EventSource.MODULE})
    finding = found(outer, node("MmBackward0", 300, outer))
    assert finding is not None
    assert finding.share == pytest.approx(1 / 4)
