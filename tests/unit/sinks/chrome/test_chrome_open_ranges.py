"""Ranges that are open for long stand at the end of a Chrome trace, until they end."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from helpers.batches import MAIN_THREAD, WORKER_THREAD, make_batch, open_for_long
from helpers.perfetto_ui import ask_perfetto
from helpers.trace_files import events_in, names_in
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventFlag, make_event_id
from otel_recfn.sinks.chrome import trace_file
from otel_recfn.sinks.chrome.writer import TraceWriter

NOW_NS = time.time_ns() // 1000 * 1000
OUTER = make_event_id(1, 1)
INNER = make_event_id(1, 2)


def row(event_id: int, name: str, start: int, end: int, **more: Any) -> dict[str, Any]:
    return {
        "event_id": event_id,
        "name": name,
        "start_ns": NOW_NS + start,
        "end_ns": NOW_NS + end,
        **more,
    }


def still_open(*rows: dict[str, Any]) -> Batch:
    return make_batch([{"flags": EventFlag.PARTIAL, **each} for each in rows])


HANG = still_open(row(INNER, "inner", 100, 9000, parent=OUTER), row(OUTER, "outer", 0, 9000))


def durations(path: Path) -> dict[str, float]:
    slices = events_in(path, "X")
    assert len({event["args"]["Event id"] for event in slices}) == len(slices), (
        "a range is there twice"
    )
    return {event["name"]: float(event["dur"]) for event in slices}


def test_what_is_open_is_there_at_once_and_once_when_it_ends(
    writer: TraceWriter, path: Path
) -> None:
    writer.write(open_for_long(HANG))
    assert durations(path) == {"outer": 9.0, "inner": 8.9}
    assert all(event["args"]["Partial"] for event in events_in(path, "X"))
    assert [
        event["args"]["name"] for event in events_in(path, "M") if event["name"] == "thread_name"
    ] == ["MainThread"]
    writer.write(make_batch([row(INNER, "inner", 100, 20_000, parent=OUTER)]))
    assert durations(path) == {"outer": 20.0, "inner": 19.9}
    writer.write(open_for_long(still_open(row(OUTER, "outer", 0, 30_000))))
    assert durations(path) == {"outer": 30.0, "inner": 19.9}
    writer.write(make_batch([row(OUTER, "outer", 0, 40_000)]))
    writer.write(open_for_long(still_open()))
    assert durations(path) == {"outer": 40.0, "inner": 19.9}
    assert not any("Partial" in event["args"] for event in events_in(path, "X"))


def test_what_ended_without_a_row_is_gone(writer: TraceWriter, path: Path) -> None:
    writer.write(open_for_long(HANG))
    writer.write(open_for_long(still_open()))
    assert events_in(path, "X") == []


def test_thousands_are_bounded_with_their_parents(
    writer: TraceWriter, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_file, "MAX_OPEN", 100)
    deep = [
        row(
            make_event_id(1, n),
            f"deep {n}",
            n,
            9000,
            parent=make_event_id(1, n - 1) if n > 1 else 0,
        )
        for n in range(1, 1000)
    ]
    writer.write(open_for_long(still_open(*reversed(deep))))
    assert names_in(path) == [f"deep {n}" for n in range(1, 101)]


def test_perfetto_shows_them(writer: TraceWriter, path: Path) -> None:
    elsewhere = row(make_event_id(2, 1), "elsewhere", 5, 9000, thread=WORKER_THREAD)
    crossing = row(
        make_event_id(1, 9),
        "crossing",
        50,
        9000,
        flags=EventFlag.ASYNC | EventFlag.PARTIAL,
        end_thread=MAIN_THREAD,
    )
    ended = row(make_event_id(1, 3), "ended", 200, 300, parent=INNER)
    writer.write(make_batch([ended]))
    writer.write(
        open_for_long(
            still_open(
                row(INNER, "inner", 100, 9000, parent=OUTER),
                row(OUTER, "outer", 0, 9000),
                elsewhere,
                crossing,
            )
        )
    )
    slices, complaints = ask_perfetto(
        path,
        "select slice.name, slice.dur, parent.name from slice left join slice parent on"
        " slice.parent_id = parent.id order by slice.ts, slice.dur desc",
        "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
    )
    assert not complaints
    assert slices == [
        ("outer", 9000, None),
        ("elsewhere", 8995, None),
        ("crossing", 8950, None),
        ("inner", 8900, "outer"),
        ("ended", 100, "inner"),
    ]
