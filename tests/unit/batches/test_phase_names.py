"""Phases of a compilation are called in words; what else there is keeps its name."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.batches import make_batch
from otel_recfn.batches.span_plan import SpanPlan
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventSource, RecordScope
from otel_recfn.model.phases import phase_name


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("create_aot_dispatcher_function (dynamo_timed)", "AOT autograd"),
        ("compile_attempt_0 (dynamo_timed)", "Dynamo"),
        ("compile_attempt_1 (dynamo_timed)", "Dynamo, attempt 2"),
        ("compile_fx_inner (dynamo_timed)", "Inductor: graph"),
        ("pass.a_new_one (dynamo_timed)", "pass.a_new_one"),
        ("create_aot_dispatcher_function", "create_aot_dispatcher_function"),
    ],
)
def test_names(name: str, shown: str) -> None:
    assert phase_name(name) == shown


def named(batch: Batch, rows: list[int]) -> Batch:
    zeros = np.zeros(len(rows), np.int64)
    no_ids = np.zeros(len(rows), np.uint64)
    return SpanPlan(batch, np.array(rows), no_ids, no_ids, zeros, no_ids, zeros, []).named({}).batch


def test_of_those_rows_that_are_phases() -> None:
    phase = {"name": "build_guards (dynamo_timed)", "scope": int(RecordScope.USER_SCOPE)}
    kinds = (
        EventSource.COMPILATION,
        EventSource.TORCH,
        EventSource.RECORD_FUNCTION,
        EventSource.COMPILATION,
    )
    batch = make_batch([{**phase, "source": int(source)} for source in kinds])
    shown = named(batch, [0, 1, 2])
    assert [shown.names[name] for name in shown.name.tolist()] == ["Dynamo: guards"] * 2 + [
        phase["name"]
    ] * 2
    assert [batch.names[name] for name in batch.name.tolist()] == [phase["name"]] * 4


def test_a_batch_without_any_is_left_as_it_is() -> None:
    batch = make_batch([{}])
    assert named(batch, [0]) is batch
