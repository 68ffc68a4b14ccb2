"""What a profile says, under torch.profiler's names, beside what torch.profiler says of the same
run.
"""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from otel_recfn import profile

torch = pytest.importorskip("torch")
from torch.profiler import ProfilerActivity  # noqa: E402

from helpers.torch_programs import Training  # noqa: E402

pytestmark = pytest.mark.torch


class Run:
    """A run, seen by both; modules are left out, which torch.profiler has no events for."""

    def __init__(self, program: Any, *, theirs: Any = None, **asked: Any) -> None:
        torchs = torch.profiler.profile(
            activities=[ProfilerActivity.CPU], **asked, **(theirs or {})
        )
        ours = profile(modules=False, **asked)
        with torchs, ours:
            program()
        self.profile, self.torchs = ours, torchs
        own_thread = ours.events()[0].thread
        # Torch.profiler looks at one alone.
        self.ours = [event for event in ours.events() if event.thread == own_thread]
        known = {event.name for event in self.ours}
        self.theirs = sorted(
            [event for event in torchs.events() if event.name in known],
            key=lambda event: event.time_range.start,
        )


@pytest.fixture(scope="module")
def training() -> Training:
    training = Training()
    training.step()
    return training


@pytest.fixture(scope="module")
def run(training: Training) -> Run:
    return Run(training.step, record_shapes=True, with_flops=True)


def is_left_out(event: Any) -> bool:
    """torch.profiler leaves out an operator that is all that another one of that name calls."""
    return (
        event.cpu_parent is not None
        and event.cpu_parent.name == event.name
        and len(event.cpu_parent.cpu_children) == 1
    )


def ranges(run: Run) -> list[tuple[Any, Any]]:
    """Ours and theirs, pair by pair."""
    assert len(run.theirs) > 300
    return list(
        zip([event for event in run.ours if not is_left_out(event)], run.theirs, strict=True)
    )


def children(event: Any) -> list[Any]:
    while len(event.cpu_children) == 1 and is_left_out(event.cpu_children[0]):
        event = event.cpu_children[0]
    return event.cpu_children


def parent_of(event: Any) -> str | None:
    return event.cpu_parent.name if event.cpu_parent else None


def public(of: Any) -> set[str]:
    return {name for name in dir(of) if not name.startswith("_")}


def test_events_and_averages_have_every_attribute_of_torchs(run: Run) -> None:
    assert public(run.theirs[0]) - public(run.ours[0]) == set()
    assert public(run.torchs.key_averages()[0]) - public(run.profile.key_averages()[0]) == set()


OTHERS = {"thread", "stack", "input_shapes"}
"""Attributes whose values docs/profile.md says to be of another type; and of averages, whose
shapes are a text.
"""


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_attributes_are_of_torchs_types(run: Run) -> None:
    averages = {one.key: one for one in run.profile.key_averages()}
    pairs = [
        *ranges(run),
        *[(averages[one.key], one) for one in run.torchs.key_averages() if one.key in averages],
    ]
    found = [(ours, theirs, name) for ours, theirs in pairs for name in public(theirs) - OTHERS]
    wrong = {
        name
        for ours, theirs, name in found
        if not _is_like(getattr(ours, name), getattr(theirs, name))
    }
    assert wrong == set()


def _is_like(ours: Any, theirs: Any) -> bool:
    """Whether it is of the same type: an event of an event's, and a whole number where torch's
    is a float that counts.
    """
    if type(theirs).__module__ == torch.autograd.profiler_util.__name__:
        return ours is not None
    return (
        callable(ours)
        if callable(theirs)
        else isinstance(ours, type(theirs)) or not (ours or theirs)
    )


SAME = [
    *(
        "name",
        "key",
        "count",
        "scope",
        "sequence_nr",
        "is_async",
        "is_user_annotation",
        "fwd_thread",
        "node_id",
        "is_legacy",
    ),
    *(
        "is_remote",
        "overload_name",
        "use_device",
        "device_type",
        "kwinputs",
        "kernels",
        "event_metadata",
        "trace_name",
    ),
    *(
        "is_python_function",
        "activity_type",
        "concrete_inputs",
        "input_dtypes",
        "structured_input_shapes",
        "device_index",
    ),
    *(
        "device_resource_id",
        "device_time",
        "device_time_total",
        "self_device_time_total",
        "device_memory_usage",
    ),
    *(
        "device_time_str",
        "device_time_total_str",
        "self_device_time_total_str",
        "linked_correlation_id",
        "flops",
    ),
    *(
        "self_cpu_percent",
        "total_cpu_percent",
        "total_device_percent",
        "python_id",
        "python_parent_id",
        "python_module_id",
    ),
]


@pytest.mark.parametrize("attribute", SAME)
def test_events_say_the_same(run: Run, attribute: str) -> None:
    if not hasattr(run.theirs[0], attribute):
        pytest.skip("events of this PyTorch don't have it")
    for ours, theirs in ranges(run):
        own = getattr(ours, attribute)
        expected = getattr(theirs, attribute)
        # None: it has none, as memory has no scope.
        assert own == expected or (expected is None and not own), ours.name


def test_events_have_the_same_shapes(run: Run) -> None:
    for ours, theirs in ranges(run):
        assert ours.input_shapes == theirs.input_shapes, ours.name


def test_events_lie_in_the_same(run: Run) -> None:
    for ours, theirs in ranges(run):
        assert parent_of(ours) == parent_of(theirs)
        assert [child.name for child in children(ours)] == [
            child.name for child in theirs.cpu_children
        ]
        assert all(child.cpu_parent is ours for child in ours.cpu_children)


TYPES = [
    *(
        "bfloat16",
        "bits16",
        "bits1x8",
        "bits2x4",
        "bits4x2",
        "bits8",
        "bool",
        "complex128",
        "complex64",
        "complex32",
    ),
    *(
        "float64",
        "float32",
        "float16",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
    ),
    *("int32", "int16", "int64", "int8", "uint16", "uint32", "uint64", "uint8"),
]


@pytest.mark.filterwarnings("ignore::UserWarning")  # ComplexHalf
def test_types_of_inputs_have_torchs_names() -> None:
    dtypes = [getattr(torch, name) for name in TYPES if hasattr(torch, name)]

    def views() -> None:
        for dtype in dtypes:
            torch.empty(2, dtype=dtype).view(2, 1)

    run = Run(views, record_shapes=True)
    if not hasattr(run.theirs[0], "input_dtypes"):
        pytest.skip("events of this PyTorch don't have it")
    ours, theirs = [
        [event.input_dtypes for event in of if event.name == "aten::view"]
        for of in (run.ours, run.theirs)
    ]
    assert ours == theirs
    assert len(ours) == len(dtypes)


def test_flows_lead_from_the_same_operators_to_the_same_nodes(run: Run) -> None:
    def flows(events: list[Any]) -> list[tuple[str, ...]]:
        by_id: dict[int, list[Any]] = {}
        for event in events:
            if event.flow_id:
                by_id.setdefault(event.flow_id, []).append(event)
        assert {event.flow_type for found in by_id.values() for event in found} == {1}
        return sorted(
            tuple([each.name for each in sorted(found, key=lambda one: not one.flow_start)])
            for found in by_id.values()
        )

    if not hasattr(run.theirs[0], "flow_id"):
        pytest.skip("events of this PyTorch don't have it")
    assert flows(run.profile.events()) == flows(run.torchs.events())
    assert ("aten::addmm", "AddmmBackward0") in flows(run.profile.events())


@pytest.mark.parametrize("attribute", ["cpu_time_total", "self_cpu_time_total", "cpu_time"])
def test_times_are_in_the_same_unit(run: Run, attribute: str) -> None:
    """Each looks in on the other's work, and a thread may rest between two looks at a clock:
    most are of one size.
    """
    ratios = [
        getattr(ours, attribute) / theirs
        for ours, event in ranges(run)
        if (theirs := getattr(event, attribute)) > 0
    ]
    assert 0.1 < statistics.median(ratios) < 10


def test_time_ranges_count_from_the_begin_of_the_profile(run: Run) -> None:
    for ours, theirs in ranges(run):
        assert ours.time_range.elapsed_us() == pytest.approx(ours.cpu_time_total)
        assert (type(ours.time_range.start), type(ours.time_range.end)) == (
            type(theirs.time_range.start),
            float,
        )
    assert run.ours[0].time_range.start == 0
    assert run.ours[-1].time_range.end < 60e6


def test_averages_say_the_same(run: Run) -> None:
    left_out = [
        event
        for event in run.profile.events()
        if is_left_out(event) or event.thread != run.ours[0].thread
    ]
    names = {event.name for event in run.ours} - {event.name for event in left_out}

    def counts_and_flops(averages: Any) -> dict[str, tuple[int, int]]:
        return {one.key: (one.count, one.flops) for one in averages if one.key in names}

    assert counts_and_flops(run.profile.key_averages()) == counts_and_flops(
        run.torchs.key_averages()
    )
    assert len(names) > 50


def test_the_printed_table_has_torchs_columns_and_total_line(run: Run) -> None:
    ours = str(run.profile.key_averages())
    theirs = str(run.torchs.key_averages())

    def titles(table: str) -> list[str]:
        return re.split(
            r"\s{2,}", next(line for line in table.splitlines() if "Name" in line).strip()
        )

    assert (
        titles(ours)[:6]
        == titles(theirs)[:6]
        == ["Name", "Self CPU %", "Self CPU", "CPU total %", "CPU total", "CPU time avg"]
    )
    for table in (ours, theirs):
        assert re.search(r"^Self CPU time total: \d+\.\d{3}m?u?s$", table, re.MULTILINE)
    total = sum(event.self_cpu_time_total for event in run.profile.events()) / 1000
    assert f"Self CPU time total: {total:.3f}ms" in ours


def first(x: Any) -> Any:
    return torch.relu(x)


def second(x: Any) -> Any:
    return torch.relu(x)


@pytest.mark.parametrize(
    ("asked", "are_recorded"),
    [
        ({}, True),
        ({"with_modules": True}, True),
        ({"with_modules": False}, False),
        ({"with_modules": True, "modules": False}, True),
        ({"with_modules": None, "modules": False}, False),
    ],
)
def test_modules_are_recorded_as_with_modules_says(
    asked: dict[str, Any], are_recorded: bool
) -> None:
    with profile(**asked) as prof:
        torch.nn.Linear(2, 2)(torch.ones(2))
    assert ("nn.Module: Linear_0" in [event.name for event in prof.events()]) == are_recorded


def program() -> None:
    x = torch.ones(2)
    for _ in range(3):
        first(x)
    second(x)


def functions(stack: list[str]) -> tuple[str, ...]:
    """The Python functions of a stack, whatever lines they are at."""
    return tuple([line.rpartition(": ")[2] for line in stack if not line.startswith("<")])


def test_averages_by_stacks_are_the_same_groups() -> None:
    verbose = torch._C._profiler._ExperimentalConfig(verbose=True)
    run = Run(program, with_stack=True, theirs={"experimental_config": verbose})

    def relus(averages: Any, lines: int) -> Counter[tuple[str, ...]]:
        found: Counter[tuple[str, ...]] = Counter()
        for one in averages.key_averages(group_by_stack_n=lines):
            if one.key == "aten::relu":
                found[functions(one.stack)] += one.count
        return found

    ours = relus(run.profile, 2)
    assert ours == {("first", "program"): 3, ("second", "program"): 1}
    theirs = relus(run.torchs, 3)  # with the built-in function
    assert theirs in (ours, {(): 4})  # PyTorch 2.4 tells of no stack here
    table = run.profile.key_averages(group_by_stack_n=2).table()
    assert re.search(r"Source Location\n", table)
    assert re.search(r"aten::relu .* 3 .*\(\d+\): first\n *\S*\(\d+\): program\n", table)


def test_tables_take_the_same_keywords(run: Run) -> None:
    def names_shown(averages: Any) -> set[str]:
        """The names of operators that the table shows."""
        table = averages.table(
            "self_cpu_time_total",
            -1,
            75,
            max_name_column_width=20,
            header="Step",
            top_level_events_only=True,
            time_unit="ms",
        )
        assert "Step\n" in table
        assert not re.search(r"[0-9]us", table)
        return {
            word
            for line in table.splitlines()
            for word in line.split()[:1]
            if word.startswith("aten::")
        }

    ours = names_shown(run.profile.key_averages())
    theirs = names_shown(run.torchs.key_averages())
    assert theirs
    assert theirs <= ours  # torch.profiler looks at the first range of each name alone


def test_a_chrome_trace_with_stacks_has_the_same_python_frames(tmp_path: Path) -> None:
    """Of two runs: before CPython 3.12 only one of both can trace calls."""
    with torch.profiler.profile(with_stack=True) as theirs:
        program()
    with profile(with_stack=True) as ours:
        program()
    ours.export_chrome_trace(tmp_path / "ours.json")
    theirs.export_chrome_trace(str(tmp_path / "theirs.json"))

    def frames(name: str) -> list[tuple[str, str]]:
        """The calls of Python functions of this file around operators, each with what is called
        there.
        """
        events = json.loads((tmp_path / name).read_text())["traceEvents"]
        slices = [
            event
            for event in events
            if event.get("ph") == "X" and event["cat"] in ("python_function", "cpu_op")
        ]
        for event in slices:  # in nanoseconds, which add up exactly
            event["ts"], event["dur"] = round(1000 * event["ts"]), round(1000 * event["dur"])
        slices.sort(key=lambda event: (event["ts"], -event["dur"]))
        found = []
        enclosing = [{"name": "", "ts": 0, "dur": 1 << 80}]
        for event in slices:
            while event["ts"] >= enclosing[-1]["ts"] + enclosing[-1]["dur"]:
                enclosing.pop()
            if event["name"] == "aten::relu":
                found.append(
                    tuple(
                        [
                            re.sub(r" at 0x\w+|\.*/", "", one["name"].rpartition("/")[2])
                            for one in enclosing[-3:]
                        ]
                    )
                )
            enclosing.append(event)
        return found

    assert frames("ours.json") == frames("theirs.json")
    assert len(frames("ours.json")) == 4
    assert not any(
        event.name.startswith(("<built-in", "test_profile_against")) for event in ours.events()
    )
