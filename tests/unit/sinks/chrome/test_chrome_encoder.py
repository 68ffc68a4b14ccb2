"""Chrome events: the bytes of the model, valid JSON, no nanosecond lost."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from helpers.batches import BASE_NS, MAIN_THREAD, WORKER_THREAD, make_batch
from models.chrome_events import model_events, model_flows
from otel_recfn._native import encode_chrome_events, encode_chrome_flows
from otel_recfn.batches.python_ids import CallIds
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventFlag, EventSource, RecordScope, RowKind
from otel_recfn.sinks.chrome.arrows import Arrows

PID = 4242

# Lone surrogates and control characters too.
any_text = st.text(st.characters(exclude_categories=()), max_size=20)
unsigned = st.integers(0, (1 << 63) - 1)
signed = st.integers(-(1 << 63), (1 << 63) - 1)
times = st.integers(0, 1 << 62)
json_lists = st.lists(st.lists(st.integers(0, 1 << 31)), max_size=3).map(
    lambda value: json.dumps(value, separators=(",", ":"))
)
type_lists = st.lists(st.text(max_size=20), max_size=3).map(
    lambda value: json.dumps(value, ensure_ascii=False)
)
rows = st.fixed_dictionaries(
    {},
    optional={
        "event_id": unsigned,
        "kind": st.sampled_from(RowKind),
        "name": st.one_of(
            any_text, st.just("step"), st.from_regex(r"nn\.Module: \w*_?\d{0,11}", fullmatch=True)
        ),
        "scope": st.sampled_from(RecordScope),
        "source": st.sampled_from(EventSource),
        "start_ns": times,
        "end_ns": times,
        "thread": st.sampled_from([MAIN_THREAD, WORKER_THREAD]),
        "end_thread": st.sampled_from([MAIN_THREAD, WORKER_THREAD._replace(native_id=0)]),
        "sequence_nr": signed,
        "forward_thread_id": unsigned,
        "handle": unsigned,
        "node_id": signed,
        "debug_handle": signed,
        "flags": st.integers(0, 31).map(EventFlag),
        "shapes": st.one_of(st.just(""), json_lists),
        "dtypes": st.one_of(st.just(""), type_lists),
        "concrete_inputs": st.one_of(st.just(""), type_lists),
        "attributes": st.one_of(
            st.just(""), st.dictionaries(st.text(max_size=9), signed, max_size=2).map(json.dumps)
        ),
        "module": any_text,
        "error": any_text,
        "flops": signed,
        "cpu_time_ns": signed,
        "stack": any_text,
        "nbytes": signed,
        "device": any_text,
        "call_site": any_text,
        "caller": st.one_of(st.just(0), unsigned),
        "step_number": signed,
    },
)


def row_numbers(batch: Batch) -> Any:
    return np.arange(len(batch), dtype=np.int64)


def encoded(encoder: Any, *arguments: Any, **named: Any) -> bytes:
    """What an encoder writes, to memory that held something else before."""
    memory = bytearray(b"x" * 10)
    size = encoder(*arguments, **named, pid=PID, memory=memory)
    return bytes(memory[:size])


def parsed(data: bytes) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads("[0" + data.decode() + "]", parse_float=Decimal)[1:]
    return events


def encode(*given_rows: dict[str, Any], base_ns: int = 0) -> list[dict[str, Any]]:
    """Rows as dicts to events."""
    batch = make_batch(given_rows)
    return parsed(
        encoded(encode_chrome_events, batch, row_numbers(batch), base_ns=base_ns, ids=None)
    )


@given(
    st.lists(rows, max_size=6),
    times,
    st.lists(st.tuples(*[st.one_of(st.just(0), unsigned)] * 2), min_size=6, max_size=6),
)
def test_it_writes_the_models_bytes(
    given_rows: list[dict[str, Any]], base_ns: int, ids: list[tuple[int, int]]
) -> None:
    batch = make_batch(given_rows)
    order = row_numbers(batch)[::-1]
    own, caller = (np.array(each[: len(batch)], np.uint64) for each in zip(*ids, strict=True))
    for ids in [None, CallIds(own, caller)]:
        native = encoded(encode_chrome_events, batch, order, base_ns=base_ns, ids=ids)
        assert native == encoded(model_events, batch, order, base_ns=base_ns, ids=ids)
        parsed(native)


def test_many_operators_that_share_some_of_what_they_say() -> None:
    threads = (MAIN_THREAD, WORKER_THREAD)
    scopes = (RecordScope.FUNCTION, RecordScope.USER_SCOPE)
    batch = make_batch(
        [
            {
                "name": f"op {number % 300}",
                "shapes": json.dumps([[number % 7]]),
                "thread": threads[number % 2],
                "scope": scopes[number // 3 % 2],
                "error": "failed" * (number % 11 == 0),
            }
            for number in range(5000)
        ]
    )
    native = encoded(encode_chrome_events, batch, row_numbers(batch), base_ns=0, ids=None)
    assert native == encoded(model_events, batch, row_numbers(batch), base_ns=0, ids=None)
    expected = {
        json.dumps([event["name"], event.get("cat"), event["tid"], event["args"].get("Input Dims")])
        for event in parsed(native)
    }
    assert len(expected) > 2000


@given(
    st.lists(st.tuples(unsigned, times, unsigned, times), max_size=5),
    st.integers(0, 1 << 53),
    times,
)
def test_it_writes_the_models_arrows(
    ends: list[tuple[int, int, int, int]], first_id: int, base_ns: int
) -> None:
    types = (np.uint64, np.int64, np.uint64, np.int64)
    arrows = Arrows(
        *[np.array([end[column] for end in ends], dtype=kind) for column, kind in enumerate(types)]
    )
    native = encoded(encode_chrome_flows, arrows, first_id=first_id, base_ns=base_ns)
    assert native == encoded(model_flows, arrows, first_id=first_id, base_ns=base_ns)
    assert len(parsed(native)) == 2 * len(ends)


def test_a_complete_event_has_the_keys_of_torch_profiler() -> None:
    [event] = encode(
        {
            "event_id": 77,
            "name": "aten::mm",
            "sequence_nr": 3,
            "handle": 9,
            "forward_thread_id": 1,
            "shapes": "[[2,3],[]]",
            "dtypes": '["float",""]',
            "concrete_inputs": '["","[1, 2]"]',
            "module": "layers.0",
            "flops": 12_000,
            "stack": "train.py(7): step\ntrain.py(20): <module>",
        },
        base_ns=BASE_NS - 1_500,
    )
    args = event.pop("args")
    assert event == {
        "ph": "X",
        "cat": "cpu_op",
        "name": "aten::mm",
        "pid": PID,
        "tid": MAIN_THREAD.native_id,
        "ts": Decimal("1.500"),
        "dur": Decimal("0.500"),
    }
    assert args == {
        "Event id": 77,
        "External id": 9,
        "Scope": "FUNCTION",
        "Thread id": 1,
        "Sequence number": 3,
        "Fwd thread id": 1,
        "Input Dims": [[2, 3], []],
        "Input type": ["float", ""],
        "Concrete Inputs": ["", "[1, 2]"],
        "Module": "layers.0",
        "Flops": 12_000,
        "Call stack": "train.py(7): step\ntrain.py(20): <module>",
    }
