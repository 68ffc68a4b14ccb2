"""The finding about a module that takes far longer than its siblings, on made-up ranges."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from recorded_ranges import Ran, process
from written_traces import slice_of, write_trace

from otel_recfn.model.events import EventSource
from otel_recfn.report.files import read_processes
from otel_recfn.report.finding import Finding
from otel_recfn.report.findings import findings
from otel_recfn.report.recording import Recording


def layer(number: int, us: int, worked_us: int = -1, kind: str = "Block") -> Ran:
    columns = {
        "source": EventSource.MODULE,
        "module": f"layers.{number}",
        "cpu_time_ns": 1000 * worked_us if worked_us >= 0 else -1,
    }
    return Ran(f"nn.Module: {kind}_{number}", us, (), columns)


def model(*layers: Ran) -> Ran:
    columns = {"source": EventSource.MODULE}
    return Ran("nn.Module: Model_0", sum(each.us for each in layers), layers, columns)


def found(*ran: Ran) -> Finding | None:
    every = findings([Recording([process(*ran)])])
    return next((finding for finding in every if finding.rule == "sibling"), None)


def calls(slow_us: int, kind: str = "Block") -> list[Ran]:
    """Three calls of a model with six layers, of which the last is slow."""
    layers = [layer(number, 100, kind=kind) for number in range(5)]
    return [model(*layers, layer(5, slow_us, kind=kind))] * 3


@pytest.mark.parametrize(("us", "is_found"), [(490, False), (500, True), (5000, True)])
def test_a_slow_layer_has_a_name_from_five_times_the_median_on(us: int, is_found: bool) -> None:
    finding = found(*calls(us))
    assert (finding is not None) == is_found
    if finding is not None:
        assert finding.serious
        assert finding.title == f"`layers.5` takes {us // 100} times as long as its siblings"
        assert "the others of class Block beside it took 100 us." in finding.text
        assert finding.anchor == ("nn.Module: Model_0", "nn.Module: Block_5")


def test_a_tenth_of_the_time_is_the_least() -> None:
    assert found(*calls(500), Ran("aten::to", 14_000)) is None
    few = found(*calls(500), Ran("aten::to", 10_000))
    assert few is not None
    assert not few.serious


def test_layers_that_have_sizes_of_their_own_are_no_fault() -> None:
    finding = found(*calls(5000, "Linear"))
    assert finding is not None
    assert not finding.serious


def test_work_counts_where_it_is_known() -> None:
    """A layer may wait for a core that other programs have."""
    others = [layer(number, 100, 90) for number in range(5)]
    assert found(*[model(*others, layer(5, 5000, 90))] * 3) is None
    assert found(*[model(*others, layer(5, 5000, 4500))] * 3) is not None


def test_first_calls_have_no_part_in_it() -> None:
    first = model(layer(0, 9000), *[layer(number, 100) for number in range(1, 6)])
    usual = model(*[layer(number, 100) for number in range(6)])
    assert found(first) is None
    assert found(first, usual, usual) is None
    assert found(model(*[layer(number, 100) for number in range(5)], layer(5, 900))) is not None


def test_modules_with_one_name_are_told_apart_by_their_paths() -> None:
    """As those of an ``nn.Sequential``, whose paths are numbers."""
    names = {"source": EventSource.MODULE, "module_class": "Part"}
    parts = [
        Ran("Part", 900 if number == 4 else 100, (), {**names, "module": str(number)})
        for number in range(6)
    ]
    finding = found(*[model(*parts)] * 3)
    assert finding is not None
    assert finding.title.startswith("`Part 4` takes 9 times")


def test_two_siblings_have_no_usual_time() -> None:
    assert found(*[model(layer(0, 100), layer(1, 100), layer(2, 900))] * 3) is None


def test_a_trace_has_the_paths_of_modules(tmp_path: Path) -> None:
    events = []
    for number in range(6):
        us = 900 if number == 5 else 100
        module = {"cat": "python_function", "args": {"Module": f"layers.{number}"}}
        events.append(slice_of(f"nn.Module: Block_{number}", 100 * number, us, **module))
    path = write_trace(tmp_path / "trace.json", *events)
    (finding,) = findings([Recording(read_processes([path]))])
    assert "`layers.5`" in json.dumps(finding)
