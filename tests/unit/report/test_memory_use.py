"""The memory of a recording: what is in use, and the finding that it grows, on made-up reports."""

from __future__ import annotations

import pytest
from recorded_ranges import Ran, process

from helpers.batches import BASE_NS, make_batch
from otel_recfn.model.events import EventSource, RowKind
from otel_recfn.report.finding import Finding
from otel_recfn.report.findings import findings
from otel_recfn.report.memory_use import memory_use
from otel_recfn.report.process import Process
from otel_recfn.report.recording import Recording

MIB = 1 << 20


def memory(nbytes: int) -> Ran:
    return Ran("[memory]", 0, (), {"kind": RowKind.MEMORY, "nbytes": nbytes})


def operator(name: str, *nbytes: int) -> Ran:
    return Ran(name, 100, tuple(memory(each) for each in nbytes))


def module(*inside: Ran) -> Ran:
    columns = {"source": EventSource.MODULE, "module": "encoder.cache"}
    return Ran("nn.Module: Cache_0", 100 * len(inside), inside, columns)


def train(number: int, *inside: Ran) -> Ran:
    columns = {"source": EventSource.STEP, "step_number": number}
    return Ran("train", 100 * len(inside) + 200, inside, columns)


def found(*ran: Ran) -> Finding | None:
    every = findings([Recording([process(*ran)])])
    return next((finding for finding in every if finding.rule == "growth"), None)


def keeps(number: int, nbytes: int) -> Ran:
    """A step that keeps so many bytes, and makes and frees others."""
    return train(
        number,
        operator("aten::mm", 8 * MIB),
        module(operator("aten::cat", nbytes)),
        memory(-8 * MIB),
    )


@pytest.mark.parametrize(
    ("nbytes", "is_found", "serious"),
    [(60_000, False, False), (70_000, True, False), (2 * MIB, True, True)],
)
def test_what_each_step_keeps_is_named(nbytes: int, is_found: bool, serious: bool) -> None:
    finding = found(*[keeps(number, nbytes) for number in range(6)])
    assert (finding is not None) == is_found
    if finding is not None:
        assert finding.serious == serious
        assert finding.anchor == ("train", "nn.Module: Cache_0", "aten::cat")
        assert finding.headline == finding.title


def test_it_says_how_much_and_where() -> None:
    finding = found(*[keeps(number, 2 * MIB) for number in range(6)])
    assert finding is not None
    assert finding.title == "Memory grows by 2 MiB a step, in `aten::cat` in `encoder.cache`"
    assert (
        "After train#5 10 MiB more were in use than after train#0, 5 steps before." in finding.text
    )
    assert finding.text.endswith("was allocated in `aten::cat` in `encoder.cache`: 10 MiB.")


def test_calls_of_a_model_are_steps_where_there_are_none() -> None:
    call = module(operator("aten::cat", 3 * MIB), memory(-MIB))
    assert found(*[call] * 4) is not None
    assert found(*[call] * 3) is None


def test_threads_of_which_only_operators_are_known_count_in_no_sum() -> None:
    """What they free between operators isn't reported."""
    freed_in_operators = module(operator("aten::cat", 3 * MIB, -MIB))
    assert found(*[freed_in_operators] * 9) is None


def test_what_the_first_step_makes_and_what_is_freed_later_is_no_growth() -> None:
    first = train(0, operator("aten::zeros", 900 * MIB))
    usual = [train(number, operator("aten::mm", MIB, -MIB)) for number in range(1, 9)]
    assert found(first, *usual) is None
    swings = [train(number, memory(MIB * (-1) ** number)) for number in range(9)]
    assert found(*swings) is None


def test_a_block_that_is_freed_is_the_newest_of_its_size() -> None:
    sizes = [4, 1, -1, 1, -4, -7]
    rows = [
        {"name": "[memory]", "kind": RowKind.MEMORY, "nbytes": nbytes, "parent": 0}
        for nbytes in sizes
    ]
    use = memory_use(Recording([Process("", make_batch([*rows, {"name": "op"}]))]), 0)
    assert use.in_use.tolist() == [4, 5, 4, 5, 1, -6]
    assert use.at(use.time_ns[[0, 3]] + 1).tolist() == [4, 5]
    assert use.at(use.time_ns[:1] - 1).tolist() == [0]
    assert use.blocks_left(0, 2 * BASE_NS).tolist() == [3]
    assert use.range.tolist() == [-1] * len(sizes)
