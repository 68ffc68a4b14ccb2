"""The finding that backward passes run parts of the forward pass again, on made-up ranges."""

from __future__ import annotations

import pytest
from recorded_ranges import Ran, process

from otel_recfn.model.events import NODES_PREFIX, EventSource, RecordScope
from otel_recfn.report.finding import Finding
from otel_recfn.report.findings import findings
from otel_recfn.report.recording import Recording

BLOCK = Ran("nn.Module: Block_0", 100, (Ran("aten::mm", 90),), {"source": EventSource.MODULE})


def node(name: str, us: int, *inside: Ran, number: int = -1) -> Ran:
    columns = {"scope": RecordScope.BACKWARD_FUNCTION, "sequence_nr": number}
    inner = Ran(name, us, inside, columns)
    return Ran(NODES_PREFIX + name, us, (inner,), {"sequence_nr": number})


def operator(name: str, us: int, number: int = -1, *inside: Ran) -> Ran:
    """With gradients it has a sequence number."""
    return Ran(f"aten::{name}", us, inside, {"sequence_nr": number})


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


SIN_AND_MUL = (operator("sin", 100, 7), operator("mul", 100, 8))
ENCODER = Ran("nn.Module: Encoder_0", 200, SIN_AND_MUL, {"source": EventSource.MODULE})
AGAIN = (operator("sin", 100, 19), operator("mul", 80, 20))


def test_a_function_is_computed_again_by_the_node_that_needs_it() -> None:
    """By a checkpoint without a node of its own: the one after it computes it, with gradients."""
    first = node("MulBackward0", 300, *AGAIN, operator("mul", 100), number=8)
    finding = found(ENCODER, first, node("SinBackward0", 100, operator("cos", 90), number=7))
    assert finding is not None
    assert finding.share == pytest.approx(180 / 600)
    assert "2 calls in 180 us; most of it was aten::sin in MulBackward0" in finding.text
    assert " `nn.Module: Encoder_0` had called them in the forward pass." in finding.text


def test_autocast_may_be_around_its_operators() -> None:
    forward = operator("linear", 100, -1, operator("to", 10, 7), operator("linear", 80, 7))
    again = operator("linear", 100, -1, operator("to", 10, 19), operator("linear", 80, 19))
    finding = found(forward, node("MulBackward0", 200, again, operator("mul", 100), number=8))
    assert finding is not None
    assert finding.share == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    "inside",
    [
        pytest.param((operator("mul", 200, 19),), id="gradients of gradients"),
        pytest.param(
            (operator("mul", 200, 19), operator("zeros", 5), operator("empty", 5)), id="new tensors"
        ),
        pytest.param((operator("solve", 200, 19), operator("mul", 90)), id="not in a forward pass"),
        pytest.param((operator("sin", 200), operator("mul", 90)), id="its own operators"),
        pytest.param(
            (Ran("torch::autograd::CopySlices", 200, (), {"sequence_nr": 8}), operator("mul", 90)),
            id="a node of torch.profiler",
        ),
    ],
)
def test_what_a_node_computes_itself_is_no_repetition(inside: tuple[Ran, ...]) -> None:
    assert found(ENCODER, node("MulBackward0", 300, *inside, number=8)) is None
