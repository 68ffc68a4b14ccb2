"""``Python id`` in Chrome traces: 1, 2, 3, ... in the order of begins over all threads, as
torch.profiler's.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from helpers.timeouts import PATIENCE_S
from helpers.trace_files import read_trace
from otel_recfn import OtelRecordFunctionInstrumentor, profile


def leaf() -> int:
    return len("leaf")


def works(turn: threading.Barrier) -> None:
    for _ in range(3):
        leaf()
        turn.wait(PATIENCE_S)


def program(drain: Callable[[], object]) -> None:
    """Three threads, with drains in the middle of calls of each."""
    turn = threading.Barrier(3)
    threads = [threading.Thread(target=works, args=(turn,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        leaf()
        drain()
        turn.wait(PATIENCE_S)
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def check_ids(path: Path) -> list[Any]:
    """The calls, whose ids are 1 to n, in the order of begins in each thread."""
    events = [
        each for each in read_trace(path)["traceEvents"] if each.get("cat") == "python_function"
    ]
    by_id: dict[int, Any] = {each["args"]["Python id"]: each for each in events}
    assert sorted(by_id) == list(range(1, len(events) + 1))
    for tid in {each["tid"] for each in events}:
        starts = [by_id[number]["ts"] for number in sorted(by_id) if by_id[number]["tid"] == tid]
        assert starts == sorted(starts)
    assert sum(each["name"].endswith(": leaf") for each in events) == 9
    for each in events:
        parent = by_id.get(each["args"].get("Python parent id", 0))
        assert (parent is not None) == ("Python parent id" in each["args"])
        if parent is not None:
            assert parent["tid"] == each["tid"]
            assert parent["args"]["Python id"] < each["args"]["Python id"]
            assert parent["ts"] <= each["ts"]
            assert parent["ts"] + parent["dur"] >= each["ts"] + each["dur"]
    callers = {
        by_id[each["args"]["Python parent id"]]["name"]
        for each in events
        if each["name"].endswith(": leaf")
    }
    assert {name.rpartition(" ")[2] for name in callers} == {"works", "program"}
    return events


ALONE_OR_NOT: list[Callable[[], AbstractContextManager[Any]]] = [
    contextlib.nullcontext,
    lambda: profile(python_calls=True),
]


@pytest.mark.parametrize("beside", ALONE_OR_NOT, ids=["alone", "beside another capture"])
def test_in_a_file_that_is_written_while_the_program_runs(
    tmp_path: Path, beside: Callable[[], Any]
) -> None:
    instrumentor = OtelRecordFunctionInstrumentor()
    with beside():
        instrumentor.instrument(chrome_trace=tmp_path / "trace.json", python_calls=True)
        try:
            program(lambda: instrumentor.flush(PATIENCE_S))
        finally:
            instrumentor.uninstrument()
    # Over all threads but for calls that began at the moment of a drain.
    check_ids(tmp_path / "trace.json")


@pytest.mark.parametrize("beside", ALONE_OR_NOT, ids=["alone", "beside another capture"])
def test_in_a_profile_that_is_exported(tmp_path: Path, beside: Callable[[], Any]) -> None:
    with beside(), profile(python_calls=True) as prof:
        program(prof.events)
    prof.export_chrome_trace(tmp_path / "trace.json")
    events = check_ids(tmp_path / "trace.json")
    begins = [
        each["ts"] for each in sorted(events, key=lambda each: int(each["args"]["Python id"]))
    ]
    assert begins == sorted(begins)
    args = [each["args"] for each in events]
    in_file = {
        each["Event id"]: (each["Python id"], each.get("Python parent id", -1)) for each in args
    }
    assert {
        each.event_id: (each.python_id, each.python_parent_id) for each in prof.events()
    } == in_file
