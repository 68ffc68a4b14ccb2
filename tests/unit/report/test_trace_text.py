"""A trace's JSON read block by block: the same events as all at once, whatever stands in it and
wherever it is cut.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from otel_recfn.report.traces.text import MAX_EVENT_BYTES, TraceText

pytestmark = pytest.mark.one_python

texts = st.text(st.sampled_from('ab"\\/[]{},: \n\u4e2d'), max_size=6)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
events = st.lists(
    st.fixed_dictionaries({"ph": st.sampled_from("XM")}, optional={"name": texts, "args": values})
    | values,
    max_size=8,
)
others = st.dictionaries(texts.filter(lambda name: name != "traceEvents"), values, max_size=3)
separators = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n ", " :\t")])
blocks = st.integers(1, 60)


def read(text: bytes, block: int) -> tuple[list[Any], TraceText]:
    trace = TraceText()
    found = []
    for begin in range(0, len(text), block):
        for part in trace.add(text[begin : begin + block]):
            found += part
    for part in trace.finish():
        found += part
    return found, trace


@given(events, separators, st.booleans(), blocks)
def test_an_array(drawn: list[Any], form: tuple[str, str], ascii_only: bool, block: int) -> None:
    found, trace = read(json.dumps(drawn, separators=form, ensure_ascii=ascii_only).encode(), block)
    assert found == drawn
    assert (trace.is_whole, trace.is_object, trace.has_events, trace.left_out.total()) == (
        True,
        False,
        True,
        0,
    )


@given(others, events, others, st.integers(), separators, blocks)
def test_an_object(
    before: Any, drawn: list[Any], after: Any, base: int, form: tuple[str, str], block: int
) -> None:
    fields = {
        **before,
        "baseTimeNanoseconds": base,
        "traceEvents": drawn,
        **{f"{name}'": each for name, each in after.items()},
    }
    found, trace = read(json.dumps(fields, separators=form).encode(), block)
    assert found == drawn
    assert trace.fields == {"baseTimeNanoseconds": base}
    assert (trace.is_whole, trace.is_object, trace.has_events, trace.left_out.total()) == (
        True,
        True,
        True,
        0,
    )


@given(others, blocks)
def test_an_object_without_events(fields: Any, block: int) -> None:
    found, trace = read(json.dumps({"a": {"traceEvents": [1]}, **fields}).encode(), block)
    assert (found, trace.is_whole, trace.has_events) == ([], True, False)


@given(events.filter(bool), blocks, st.data())
def test_an_array_that_is_cut_has_the_events_before(
    drawn: list[Any], block: int, data: st.DataObject
) -> None:
    text = json.dumps(drawn).encode()
    cut = text[: data.draw(st.integers(1, len(text) - 1))]
    found, trace = read(cut, block)
    assert not trace.is_whole
    # The last number may be cut, too.
    assert found[:-1] == drawn[: len(found) - 1] if found else True
    assert len(found) + trace.left_out["cut off"] <= len(drawn)


@given(
    st.binary(max_size=60) | st.text(st.sampled_from('[]{},:"\\a1 '), max_size=60).map(str.encode),
    blocks,
)
@example(b'{"traceEvents":[1],"traceEvents":5}', 3)
@example(b"]]]", 1)
@example(b"\x00{", 1)
@example(b'[{"a":1},{"ph":X},{"b":2}]', 60)
def test_whatever_the_text_is_the_cut_into_blocks_makes_no_difference(
    text: bytes, block: int
) -> None:
    found, trace = read(text, block)
    expected, whole = read(text, len(text) or 1)
    assert (repr(found), trace.is_whole, trace.left_out) == (
        repr(expected),
        whole.is_whole,
        whole.left_out,
    )
    assert trace.is_json == whole.is_json


def test_an_event_that_never_ends_is_not_kept() -> None:
    trace = TraceText()
    for block in [b'[{"a": "', *[b"x" * (1 << 20)] * 9]:
        assert not [event for part in trace.add(block) for event in part]
        assert len(trace.remaining) <= MAX_EVENT_BYTES + (1 << 20)
    found = [event for part in trace.add(b'"}, {"b": 1}, {"c": 2}') for event in part]
    found += [event for part in trace.finish() for event in part]
    assert found == [{"b": 1}, {"c": 2}]
    assert trace.left_out == {"longer than 4 MiB": 1}


def test_fields_that_are_not_needed_are_not_kept() -> None:
    trace = TraceText()
    for block in [
        b'{"a": [',
        *[b'{"size": 24, "kind": 9},' * 1000] * 99,
        b"1]",
        b', "distributedInfo": {"rank": 3}, "traceEvents": [{"b": 1}',
    ]:
        found = [event for part in trace.add(block) for event in part]
        assert len(trace.remaining) < 1 << 18
    assert found + [event for part in trace.add(b"]}") for event in part] == [{"b": 1}]
    assert trace.fields == {"distributedInfo": {"rank": 3}}
