"""The finding about what was open when a recording ended, on made-up ranges and traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from helpers.batches import BASE_NS, MAIN_THREAD, WORKER_THREAD, make_batch
from otel_recfn.batches.wall import Block
from otel_recfn.model.columns import Track
from otel_recfn.model.events import EventFlag, make_event_id
from otel_recfn.report.files import read_processes
from otel_recfn.report.finding import Finding
from otel_recfn.report.findings import findings
from otel_recfn.report.process import Process
from otel_recfn.report.recording import Recording
from otel_recfn.report.report import Report

END_MS = 9_000
TRAIN, FORWARD, STUCK = (make_event_id(MAIN_THREAD.number, number) for number in (1, 2, 3))


def ran(
    name: str, event_id: int, start_ms: int, end_ms: int = END_MS, parent: int = 0, **more: Any
) -> dict[str, Any]:
    """A range, which is open if it has no end of its own."""
    return {
        "name": name,
        "event_id": event_id,
        "parent": parent,
        "start_ns": BASE_NS + start_ms * 1_000_000,
        "end_ns": BASE_NS + end_ms * 1_000_000,
        "flags": EventFlag.PARTIAL if end_ms == END_MS else EventFlag.NONE,
        **more,
    }


def ended(name: str, number: int, start_ms: int, end_ms: int, parent: int = 0) -> dict[str, Any]:
    return ran(name, make_event_id(MAIN_THREAD.number, number), start_ms, end_ms, parent)


STACK = [
    ran("stuck in all_reduce", STUCK, 3_900, parent=FORWARD),
    ran("forward", FORWARD, 1_000, parent=TRAIN),
    ran("train", TRAIN, 0),
]


def found(*rows: dict[str, Any], block: Block | None = None) -> list[Finding]:
    process = Process("", make_batch(list(rows)), block=block)
    return [each for each in findings([Recording([process])]) if each.rule == "hang"]


def test_a_hang_comes_first_with_its_stack() -> None:
    copies = ended("aten::to", 4, 1_000, 3_800, FORWARD)
    first, *_ = findings([Recording([Process("", make_batch([copies, *STACK]))])])
    assert first.headline == "`stuck in all_reduce` was open for 5.1 s when the recording ended"
    assert first.anchor == ("train", "forward", "stuck in all_reduce")
    assert first.serious
    assert "Open in MainThread: train > forward > stuck in all_reduce." in first.text
    assert first.share == pytest.approx(5.1 / 9)


def test_what_the_recording_ended_inside_of_is_no_hang() -> None:
    assert found(ended("aten::mm", 4, 8_000, 8_500, TRAIN), ran("train", TRAIN, 0)) == []
    assert found(ran("train", TRAIN, 8_001)) == []


def test_what_usually_takes_so_long_is_no_hang() -> None:
    usual = ended("compile", 4, 0, 3_000)
    assert found(usual, ran("compile", make_event_id(1, 5), 3_001)) == []
    assert len(found(usual, ran("compile", make_event_id(1, 5), 3_000))) == 1


def test_the_thread_that_ended_the_block_ran_on() -> None:
    block = Block(BASE_NS, BASE_NS + END_MS * 1_000_000, end_thread=MAIN_THREAD.native_id)
    assert found(*STACK, block=block) == []
    watched = block._replace(end_thread=WORKER_THREAD.native_id)
    assert len(found(*STACK, block=watched)) == 1


def test_a_range_that_waits_for_another_threads_is_no_hang_but_that_one_is() -> None:
    node = make_event_id(WORKER_THREAD.number, 1)
    backward = ran("backward", TRAIN, 0)
    done = ran("MulBackward0", node, 7_000, 8_900, TRAIN, thread=WORKER_THREAD)
    assert found(done, backward) == []
    (finding,) = found(
        ran("MulBackward0", node, 2_000, parent=TRAIN, thread=WORKER_THREAD), backward
    )
    assert finding.title.startswith("`MulBackward0` was open for 7 s")


def test_other_threads_that_hang_are_named() -> None:
    threads = [Track(number, number, number, 0, f"t{number}") for number in range(3, 9)]
    others = [
        ran("get", make_event_id(thread.number, 1), 5_000, thread=thread) for thread in threads
    ]
    (finding,) = found(*STACK, *others)
    named = "So were `get` in t3 (4 s), `get` in t4 (4 s), `get` in t5 (4 s). 3 more hang."
    assert finding.text.endswith(named)


def test_a_trace_says_what_was_open_when_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    common = {"ph": "X", "pid": 1, "tid": 1, "cat": "user_annotation"}
    slices = [
        {**common, "name": "train", "ts": 0, "dur": 9e6, "args": {"Event id": 1, "Partial": True}},
        {
            **common,
            "name": "stuck in all_reduce",
            "ts": 3.9e6,
            "dur": 5.1e6,
            "args": {"Event id": 2, "Partial": True},
        },
    ]
    path.write_text(json.dumps(slices))
    text = Report(read_processes([path])).text("md")
    title = r"\`stuck in all_reduce\` was open for 5.1 s when the recording ended"
    assert f"1. **{title} (serious).**" in text
    for each in slices:
        del each["args"]["Partial"]  # type: ignore[attr-defined]
    path.write_text(json.dumps(slices))
    assert "was open for" not in Report(read_processes([path])).text("md")
