"""Which Python calls are recorded, with each tracer: by module and path, by depth, by duration,
with C functions or without.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.calling_program import FORMS, Action, Node, Traced, by_end, call, short, tree
from helpers.example_counts import examples
from helpers.recording_helpers import check_laws
from otel_recfn import PythonCalls, record_function
from otel_recfn.recording.recorder import Recorder

HERE = Path(__file__)
CALLING = sys.modules[call.__module__].__file__ or ""
LEN = Node("<built-in function len>")


def leaf() -> int:
    return len("leaf")


def through_json() -> str:
    return json.dumps([1], default=lambda value: leaf() and str(value))


def program() -> None:
    through_json()
    json.dumps([object()], default=lambda value: str(leaf()))


def names(rows: list[object]) -> set[str]:
    return {short(row) for row in rows}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "json_is",
    [
        "json",
        "json.encoder",
        "json/",
        "json/encoder.py",
        os.path.dirname(json.__file__),
        json.encoder.__file__,
    ],
)
def test_what_is_excluded_is_not_shown_and_what_it_calls_is(traced: Traced, json_is: str) -> None:
    rows = traced.run(program, PythonCalls(exclude=(json_is,)))
    assert {"program", "through_json", "leaf", "<lambda>", LEN.name} <= names(rows)
    assert not names(rows) & {"encode", "iterencode", "default"}
    assert ("dumps" in names(rows)) == json_is.endswith(("encoder", "encoder.py"))
    check_laws(by_end(rows))


@pytest.mark.parametrize("json_is", ["json", os.path.dirname(json.__file__)])
def test_only_what_is_included_is_shown(traced: Traced, json_is: str) -> None:
    rows = traced.run(program, PythonCalls(include=(json_is,)))
    assert {"dumps", "encode", "iterencode"} <= names(rows)
    assert not [row for row in rows if row.name.endswith((": leaf", ": program", "function len>"))]
    assert not [row for row in rows if "(" in row.name and not row.name.startswith(("json", "<"))]


def test_without_c_functions(traced: Traced) -> None:
    rows = traced.run(program, PythonCalls(c_calls=False))
    assert {"leaf", "dumps", "encode"} <= names(rows)
    assert not [row for row in rows if row.name.startswith("<built-in")]
    check_laws(by_end(rows))


def test_depth_counts_from_where_tracing_began(traced: Traced) -> None:
    def deeper(levels: int) -> None:
        if levels:
            deeper(levels - 1)

    def recursing() -> None:
        deeper(5)
        leaf()

    one = Node("deeper")
    two = Node("deeper", (Node("deeper"),))
    assert tree(traced.run(recursing, PythonCalls(max_depth=2)), "recursing")[0].below[0] == one
    assert tree(traced.run(recursing, PythonCalls(max_depth=3)), "recursing")[0].below == (
        two,
        Node("leaf", (LEN,)),
    )


def test_short_calls_are_left_out_and_what_they_call_is_not_lost(
    traced: Traced, recorder: Recorder
) -> None:
    def slow() -> None:
        quick()
        with record_function("range"):
            quick()
        time.sleep(0.03)

    def quick() -> None:
        with record_function("in quick"):
            pass

    rows = traced.run(slow, PythonCalls(min_duration_ns=20_000_000))
    seen = [
        row for row in rows if "quick" in row.name or short(row) == "slow" or row.name == "range"
    ]
    parents = {row.event_id: row for row in rows}
    assert [row.name for row in seen if row.name == "in quick"] == ["in quick"] * 2
    quick_ones = [row for row in seen if short(row) == "quick"]
    # A busy machine may make one take so long.
    assert all(row.end_ns - row.start_ns >= 20_000_000 for row in quick_ones)
    above = {short(parents[row.parent]) for row in seen if row.name == "in quick"}
    assert above == {"slow", "range"} or (quick_ones and above <= {"slow", "range", "quick"})
    assert [short(row) for row in rows if short(row).startswith("<built-in function sleep")]


def test_captures_that_run_at_once_share_what_is_traced(
    traced: Traced, caplog: pytest.LogCaptureFixture
) -> None:
    first = traced.begin(PythonCalls(include=(HERE.stem,), c_calls=False))
    leaf()
    second = traced.begin(PythonCalls(include=("json",)))
    leaf()
    second.stop()
    leaf()
    first.stop()
    lens = [row for row in first.sink.events() if row.name == LEN.name]
    assert len([row for row in first.sink.events() if short(row) == "leaf"]) == 3
    assert len(lens) == 1
    assert "another profiler" not in caplog.text  # it is the tracer itself


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("include", "json"),
        ("include", [1]),
        ("exclude", [""]),
        ("min_duration_ns", -1),
        ("min_duration_ns", 1.5),
        ("max_depth", 0),
        ("max_depth", True),
        ("c_calls", 1),
    ],
)
def test_what_is_not_allowed_is_refused_with_what_is(keyword: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{keyword}=.*; "):
        PythonCalls(**{keyword: value})  # type: ignore[arg-type]


actions: st.SearchStrategy[Action] = st.recursive(
    st.tuples(st.sampled_from(sorted(FORMS)), st.just([])),
    lambda inner: st.tuples(st.sampled_from(sorted(FORMS)), st.lists(inner, max_size=3)),
    max_leaves=10,
)
filters = st.builds(
    PythonCalls,
    include=st.sampled_from([(), (CALLING,), (str(HERE),)]),
    exclude=st.sampled_from([(), (CALLING,), ("contextlib",)]),
    max_depth=st.sampled_from([None, 1, 3, 8]),
    c_calls=st.booleans(),
)


@examples(40)
@given(action=actions, calls=filters)
def test_filters_leave_out_and_change_nothing_else(
    traced: Traced, action: Action, calls: PythonCalls
) -> None:
    def act() -> None:
        call(action)

    whole = traced.run(act)
    some = traced.run(act, calls)
    check_laws(by_end(some))

    def shown(node: Node) -> bool:
        return calls.c_calls or not node.name.startswith("<")

    all_calls = [node.name for node in walk(tree(whole, "act")) if shown(node)]
    kept = [node.name for node in walk(tree(some, "act"))]
    assert is_subsequence(kept, all_calls)


def walk(nodes: list[Node]) -> Iterator[Node]:
    for node in nodes:
        yield node
        yield from walk(list(node.below))


def is_subsequence(some: list[str], whole: list[str]) -> bool:
    rest = iter(whole)
    return all(name in rest for name in some)
