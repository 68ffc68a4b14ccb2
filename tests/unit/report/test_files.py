"""Trace files that a report reads, and what is said of those that it can't."""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batches import MAIN_THREAD, WORKER_THREAD, make_batch
from otel_recfn.batches.call_tree import tree_of_rows
from otel_recfn.cli import main
from otel_recfn.errors import TraceFileError
from otel_recfn.model.events import EventFlag, EventSource, RecordScope, RowKind, make_event_id
from otel_recfn.report.files import read_processes
from otel_recfn.report.report import Report
from otel_recfn.sinks.chrome.writer import export
from trace_files import base_ns

pytestmark = pytest.mark.one_python


def slice_of(name: str, ts: float, dur: float, **others: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "cpu_op",
        "name": name,
        "pid": 1,
        "tid": 1,
        "ts": ts,
        "dur": dur,
        **others,
    }


def written(path: Path, *events: dict[str, Any], **fields: Any) -> Path:
    path.write_text(json.dumps({"traceEvents": list(events), **fields}))
    return path


def tree(path: Path) -> list[tuple[str, ...]]:
    return [each.path for each in tree_of_rows(read_processes([path])[0].batch)]


def exported(path: Path) -> Path:
    """A trace of ours of a small batch."""
    ids = [make_event_id(1, number) for number in range(1, 6)]
    step = {
        "name": "train",
        "step_number": 3,
        "source": EventSource.STEP,
        "scope": RecordScope.USER_SCOPE,
        "cpu_time_ns": 700,
    }
    memory = {"name": "[memory]", "kind": RowKind.MEMORY, "nbytes": 128, "device": "cpu"}
    waits = {"name": "waits", "flags": EventFlag.ASYNC, "end_thread": WORKER_THREAD}

    def row(begin: int, end: int, **told: Any) -> dict[str, Any]:
        return {"start_ns": base_ns() + begin, "end_ns": base_ns() + end, **told}

    rows = [
        row(100, 500, event_id=ids[1], parent=ids[0], name="aten::mm", shapes="[[2,3],[3,4]]"),
        row(600, 600, event_id=ids[2], parent=ids[0], **memory),
        row(700, 1900, event_id=ids[3], parent=ids[0], **waits),
        row(0, 1000, event_id=ids[0], **step),
        row(50, 60, event_id=make_event_id(2, 1), thread=WORKER_THREAD, name="beside"),
    ]
    export([make_batch(rows)], path)
    return path


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_a_trace_of_ours_says_what_the_batch_said(tmp_path: Path, suffix: str) -> None:
    batch = read_processes([exported(tmp_path / f"t{suffix}")])[0].batch
    events = {event.name: event for event in batch.events()}
    assert set(events) == {"train", "aten::mm", "[memory]", "waits", "beside"}
    train, product, memory = events["train"], events["aten::mm"], events["[memory]"]
    assert (train.step_number, train.source, train.cpu_time_ns) == (3, EventSource.STEP, 700)
    assert (product.start_ns, product.end_ns) == (base_ns() + 100, base_ns() + 500)
    assert product.parent == memory.parent == train.event_id
    assert (memory.kind, memory.nbytes) == (RowKind.MEMORY, 128)
    assert events["waits"].flags & EventFlag.ASYNC
    assert events["waits"].duration_ns == 1200
    assert events["train"].thread.name == MAIN_THREAD.name
    assert events["beside"].thread != events["train"].thread


@pytest.mark.parametrize(
    "form", [{}, {"indent": 2}, {"separators": (",", ":")}, {"sort_keys": True}], ids=str
)
@pytest.mark.parametrize("block", [1, 30, 200])
def test_a_file_is_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: dict[str, Any], block: int
) -> None:
    """Wherever they are cut, and whatever is in them."""
    events = [
        slice_of(f'\u4e2d}},{{"ph": {number}', number * 10, 5, args={"a": [{"ph": 1}, {"ph": 2}]})
        for number in range(20)
    ]
    path = tmp_path / "t.json"
    path.write_text(
        json.dumps(
            {"a": ["[", 1], "traceEvents": events, "baseTimeNanoseconds": 7},
            ensure_ascii=False,
            **form,
        )
    )
    monkeypatch.setattr("otel_recfn.report.files.BLOCK_BYTES", block)
    batch = read_processes([path])[0].batch
    assert [event.name for event in batch.events()] == [event["name"] for event in events]
    assert int(batch.start_ns[0]) == 7


def test_slices_nest_by_time_on_each_thread(tmp_path: Path) -> None:
    path = written(
        tmp_path / "t.json",
        slice_of("inner", 12, 2),
        slice_of("outer", 10, 10),
        slice_of("next", 20, 5),
        slice_of("other thread", 12, 2, tid=2),
        slice_of("same time, first", 30, 4, args={"Ev Idx": 7}),
        slice_of("same time, second", 30, 4, args={"Ev Idx": 8}),
    )
    assert sorted(tree(path)) == [
        ("next",),
        ("other thread",),
        ("outer",),
        ("outer", "inner"),
        ("same time, first",),
        ("same time, first", "same time, second"),
    ]


def test_an_end_that_was_rounded_up_still_nests(tmp_path: Path) -> None:
    path = written(tmp_path / "t.json", slice_of("outer", 0, 10.5), slice_of("inner", 10, 0.502))
    assert ("outer", "inner") in tree(path)


def test_a_slice_that_begins_in_another_and_ends_after_it_crosses(tmp_path: Path) -> None:
    path = written(
        tmp_path / "t.json",
        slice_of("first", 0, 10),
        slice_of("crosses", 5, 10),
        slice_of("inner", 6, 1),
    )
    batch = read_processes([path])[0].batch
    events = {event.name: event for event in batch.events()}
    assert events["crosses"].flags & EventFlag.CROSSING
    assert events["inner"].parent == events["first"].event_id


def test_what_torch_profiler_writes_of_a_gpu_and_of_itself(tmp_path: Path) -> None:
    path = written(
        tmp_path / "t.json",
        slice_of("gemm", 5, 2, cat="kernel", pid=0, tid=7, args={"device": 0, "stream": 7}),
        slice_of("PyTorch Profiler (0)", 0, 90, cat="Trace", pid="Spans", tid="PyTorch Profiler"),
        slice_of("ProfilerStep#12", 0, 50, cat="user_annotation"),
        {"ph": "s", "id": 1, "pid": 1, "tid": 1, "ts": 3, "cat": "ac2g", "name": "ac2g"},
        distributedInfo={"rank": 3, "world_size": 4},
    )
    process = read_processes([path])[0]
    events = {event.name: event for event in process.batch.events()}
    assert set(events) == {"gemm", "ProfilerStep"}
    assert (events["ProfilerStep"].step_number, events["gemm"].device) == (12, "GPU")
    assert process.label == "rank 3"


def test_a_trace_that_a_kill_cut_is_read_up_to_there(tmp_path: Path) -> None:
    whole = tmp_path / "t.json"
    lines = [json.dumps(slice_of(f"op {number}", number * 10, 5)) for number in range(20)]
    whole.write_text("[\n" + ",\n".join(lines)[:-40])
    assert len(tree(whole)) == 19
    compressed = tmp_path / "t.json.gz"
    compressed.write_bytes(gzip.compress(("[\n" + ",\n".join(lines)).encode())[:-20])
    assert tree(compressed)


def test_what_a_kill_cut_still_knows_its_date(tmp_path: Path) -> None:
    path = exported(tmp_path / "t.json")
    lines = [json.dumps(event) for event in json.loads(path.read_text())["traceEvents"]]
    path.write_text("[\n" + ",\n".join(lines)[:-10])
    assert int(read_processes([path])[0].batch.start_ns.min()) == base_ns()


def test_a_step_and_its_span_are_one_range(tmp_path: Path) -> None:
    step = slice_of("train#3", 1, 5, cat="user_annotation")
    spans = [
        slice_of(name, 0, 9, cat="user_annotation", args={"span_id": "12"})
        for name in ("GET /", "train")
    ]
    assert tree(written(tmp_path / "t.json", step, *spans)) == [("GET /",), ("GET /", "train")]


BAD = {
    "empty": (b"", "is empty"),
    "foreign": (b"hello world", "isn't JSON"),
    "other JSON": (b'{"a": 1}', "has no traceEvents"),
    "an object of events": (b'{"traceEvents": {"a": 1}}', "has no traceEvents"),
    "a number": (b"17", "has no traceEvents"),
    "no ranges": (b'{"traceEvents": []}', "has no ranges"),
    "memory alone": (
        b'{"traceEvents": [{"ph": "i", "name": "m", "ts": 1, "args": {"Bytes": 1}}]}',
        "has no ranges",
    ),
    "ranges without times": (
        b'{"traceEvents": [{"ph": "X", "name": "a", "ts": "now"}]}',
        "has no ranges",
    ),
    "cut": (b'{"traceEvents": [{"ph": "X", "na', "was not written to its end"),
    "cut gzip": (
        gzip.compress(b'{"traceEvents": [{"ph": "X"}]}' * 99)[:40],
        "was not written to its end",
    ),
    "damaged gzip": (b"\x1f\x8b\x08\x00nonsense" * 9, "is damaged"),
    "deep": (b"[" * 200_000, "was not written to its end"),
    "bytes": (b'{"traceEvents": [{"name": "\xff"}]}', "has no ranges"),
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD)
def test_what_is_wrong_with_a_file_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: tuple[bytes, str]
) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(content[0])
    assert main(["report", str(path)]) == 2
    said = capsys.readouterr().err
    assert content[1] in said
    assert said.count("\n") == 1
    assert "; " in said
    assert not path.with_suffix(".html").exists()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)
keys = st.sampled_from(["ph", "name", "cat", "pid", "tid", "ts", "dur", "id", "id2", "args"])
arguments = st.sampled_from(
    ["Bytes", "Attributes", "Event id", "CPU time (ns)", "Call stack", "Scope", "name"]
)
compilations = st.dictionaries(
    st.sampled_from(["recfn.compile.reason", "recfn.compile.graph_breaks"]), json_values
)
events = st.builds(
    lambda phase, times, odd, args: {
        "ph": phase,
        "name": "torch.compile: a",
        **times,
        **odd,
        **args,
    },
    st.sampled_from(["X", "b", "e", "i", "M", "C"]),
    st.fixed_dictionaries({"ts": st.integers(0, 9), "dur": st.integers(0, 9)}),
    st.dictionaries(keys, json_values, max_size=2),
    st.fixed_dictionaries(
        {}, optional={"args": st.dictionaries(arguments, json_values | compilations, max_size=3)}
    ),
)


@given(
    st.lists(events, max_size=6),
    st.dictionaries(st.sampled_from(["baseTimeNanoseconds", "distributedInfo"]), json_values),
)
def test_whatever_stands_in_events_is_shown_or_refused(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[Any], fields: dict[str, Any]
) -> None:
    path = written(tmp_path_factory.getbasetemp() / "odd.json", *drawn, **fields)
    try:
        processes = read_processes([path])
    except TraceFileError:
        return
    assert Report(processes).html()


def test_files_that_are_not_of_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = written(tmp_path / "a.json", slice_of("a", 0, 10))
    other = written(tmp_path / "b.json", slice_of("b", 3_600e6, 10))
    assert main(["report", str(other), str(one)]) == 2
    assert "b.json begins 3600 s after" in capsys.readouterr().err
    named = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": script}}
        for script in ("train.py", "serve.py")
    ]
    programs = [
        written(tmp_path / f"{each['args']['name']}.json", each, slice_of("a", 0, 10))
        for each in named
    ]
    assert main(["report", *map(str, programs)]) == 2
    assert (
        "of different programs: serve.py, train.py; make a report of each"
        in capsys.readouterr().err
    )
    assert main(["report", str(one), str(one)]) == 2
    assert "is given twice" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "none.json")]) == 2
    assert "none.json can't be read: No such file" in capsys.readouterr().err
    assert main(["report", "."]) == 2
    assert "can't be read: Is a directory" in capsys.readouterr().err
    assert main(["report", str(one), "-o", str(one)]) == 2
    assert "name another file" in capsys.readouterr().err


def test_the_command_writes_beside_the_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = [written(tmp_path / f"t.rank{rank}.json", slice_of("a", 0, 10)) for rank in (0, 1)]
    assert [process.label for process in read_processes(ranks)] == ["rank0", "rank1"]
    worker = written(tmp_path / "t.rank0.pid12.json", slice_of("a", 0, 10))
    (tmp_path / "other").mkdir()
    again = written(tmp_path / "other" / "t.rank0.json", slice_of("a", 0, 10))
    labels = [process.label for process in read_processes([ranks[0], worker, again])]
    assert labels == [str(ranks[0]), "rank0 pid12", str(again)]
    assert main(["report", *map(str, ranks)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 't.rank0.html'}\n"
    assert main(["report", str(worker), "-o", str(tmp_path / "t.pdf")]) == 2
    assert "a report is no pdf; allowed: html, md, json" in capsys.readouterr().err
    assert (tmp_path / "t.rank0.html").read_text().startswith("<!doctype html>")


def test_the_command_prints_words_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "t.json", slice_of("aten::mm", 0, 10), slice_of("\u202e", 20, 10))
    assert main(["report", str(path), "--format", "md"]) == 0
    assert "aten::mm" in capsys.readouterr().out
    for output in (io.StringIO(), io.TextIOWrapper(io.BytesIO(), "ascii")):
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stdout", output)
            assert main(["report", str(path), "--format", "md"]) == 0
    assert main(["report", str(path), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["by_name"][0]["name"] == "aten::mm"
    assert main(["report", str(path), "-o", str(tmp_path / "words.md")]) == 0
    assert (tmp_path / "words.md").read_text().startswith("# t.json")
