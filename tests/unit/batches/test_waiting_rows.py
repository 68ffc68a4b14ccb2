"""The rows that wait for the decision of their units: they keep their values, and those that no
unit needs are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.trace import SpanContext

from helpers.batches import MAIN_THREAD, WORKER_THREAD, context, make_batch
from otel_recfn.batches import stage as stage_module
from otel_recfn.batches.stage import Stage
from otel_recfn.model.batch import COLUMN_TYPES, Batch, Event
from otel_recfn.model.events import EventFlag

pytestmark = pytest.mark.one_python

REQUEST = context(1, 2)
KEPT = {"flags": int(EventFlag.EXPOSED)}
"""Of ranges that are kept however short they are."""
any_row = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["", "a", "b", "c"]),
        "shapes": st.sampled_from(["", "[]", "[[2,3]]"]),
        "scope": st.integers(0, 9),
        "start_ns": st.integers(0, 1 << 60),
        "thread": st.sampled_from([MAIN_THREAD, WORKER_THREAD]),
        "context": st.sampled_from([REQUEST, REQUEST._replace(trace_state="a=b")]),
        "node_id": st.integers(-1, 3),
    }
)
some_batches = st.lists(st.lists(any_row, min_size=1, max_size=6), min_size=1, max_size=4)


def batches_of(rows_by_batch: Sequence[Sequence[dict[str, object]]]) -> list[Batch]:
    """Batches of ranges that have ids of their own, and no end before their begin."""
    batches, number = [], 0
    for rows in rows_by_batch:
        numbered = []
        for row in rows:
            number += 1
            end = {"end_ns": row["start_ns"]} if "start_ns" in row else {}
            numbered.append({"event_id": number, **KEPT, **row, **end})
        batches.append(make_batch(numbered))
    return batches


def kept_of(stage: Stage, trace_id: int = 1, span_id: int = 2, budget: int = 1000) -> Batch:
    """The ranges of a unit that are kept when it is decided; none if there is no such unit."""
    above = SpanContext(trace_id, span_id, False)
    unit = stage.find(above)
    return (
        stage.decide([(unit, budget)], [above], is_partial=False).plan.batch
        if unit is not None
        else make_batch([])
    )


def by_id(batch: Batch) -> dict[int, Event]:
    return {event.event_id: event for event in batch.events()}


@given(rows=some_batches, same_names=st.booleans())
def test_rows_keep_their_values(rows: list[list[dict[str, object]]], same_names: bool) -> None:
    batches = batches_of(rows)
    if same_names:
        names: list[str] = [""]
        batches = [_with_names(batch, names) for batch in batches]
    before = {event.event_id: event for batch in batches for event in batch.events()}
    stage = Stage(1000)
    for batch in batches:
        stage.add(batch)
    whole = kept_of(stage)
    assert by_id(whole) == before
    assert [getattr(whole, name).dtype for name in COLUMN_TYPES] == [*COLUMN_TYPES.values()]
    used = {text for row in whole.events() for text in (row.name, row.shapes)}
    assert {*whole.names} == {"", *used}
    assert whole.names[0] == ""


def _with_names(batch: Batch, names: list[str]) -> Batch:
    """The same batch, with a list of names that later batches share."""
    owner_and_name = {
        text: names.index(text) if text in names else names.append(text) or len(names) - 1
        for text in batch.names
    }
    changed = {}
    for name in ("name", "shapes"):
        column = getattr(batch, name).copy()
        column[:] = [owner_and_name[batch.names[index]] for index in column.tolist()]
        changed[name] = column
    return replace(batch, names=names, **changed)


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=12),
    steps=st.integers(1, 4),
    spare=st.integers(0, 20),
    most=st.integers(1, 5),
)
def test_rows_of_open_units_outlast_those_that_are_dropped(
    sizes: list[int], steps: int, spare: int, most: int
) -> None:
    """One in some of the ranges is of a unit that stays open; those of the other unit are
    decided after each batch.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage_module, "ROWS_TO_SPARE", spare)
        patch.setattr(stage_module, "MAX_BATCHES", most)
        stage = Stage(1000)
    kept: list[int] = []
    added = 0
    for size in sizes:
        ids = list(range(added + 1, added + size + 1))
        kept += [one for one in ids if one % steps == 0]
        spans = {one: REQUEST if one % steps == 0 else context(1, 3) for one in ids}
        stage.add(
            make_batch(
                [
                    {"event_id": one, "name": f"range {one}", "context": spans[one], **KEPT}
                    for one in ids
                ]
            ),
            {},
        )
        kept_of(stage, span_id=3)
        added += size
    assert {number: event.name for number, event in by_id(kept_of(stage)).items()} == {
        one: f"range {one}" for one in kept
    }


@pytest.mark.parametrize(("spare", "max_batches"), [(3, 1000), (1000, 2)])
def test_rows_of_decided_units_are_dropped(
    monkeypatch: pytest.MonkeyPatch, spare: int, max_batches: int
) -> None:
    monkeypatch.setattr(stage_module, "ROWS_TO_SPARE", spare)
    monkeypatch.setattr(stage_module, "MAX_BATCHES", max_batches)
    stage = Stage(1000)
    for number in range(1, 50):
        other = {"event_id": 1000 + number, "kind": 1}
        stage.add(
            make_batch([other, {"event_id": number, "context": context(1, number), **KEPT}]), {}
        )
        assert kept_of(stage, span_id=number).event_id.tolist() == [number]
    assert stage.waiting_rows() <= (2 + 2 + 2 + spare if spare == 3 else 2 * (max_batches + 1))


def test_tables_have_only_the_entries_of_rows_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """One unit stays open and has a row in each batch, beside a row of a unit that is decided at
    once.
    """
    monkeypatch.setattr(stage_module, "MAX_BATCHES", 2)
    stage = Stage(1000)
    for number in range(1, 21):
        other = {"event_id": 2 * number + 1, "context": context(1, 100 + number), **KEPT}
        stage.add(make_batch([{"event_id": 2 * number, "context": REQUEST, **KEPT}, other]))
        kept_of(stage, span_id=100 + number)
    batch = kept_of(stage)
    assert {batch.contexts[index] for index in batch.context.tolist()} == {REQUEST}
    assert len(batch.contexts) <= 6
    assert len(batch.tracks) <= 3
