"""Trace files that a report reads, and what is said of those that it can't."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import stat
import sys
import unicodedata
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from written_traces import slice_of, write_trace

from helpers.batches import MAIN_THREAD, WORKER_THREAD, make_batch
from helpers.trace_files import base_ns
from otel_recfn.batches.build_tree import build_tree
from otel_recfn.batches.wall import Block, StepTime
from otel_recfn.cli import main
from otel_recfn.errors import TraceFileError
from otel_recfn.model.events import EventFlag, EventSource, RecordScope, RowKind, make_event_id
from otel_recfn.report.files import read_processes
from otel_recfn.report.recording import Recording
from otel_recfn.report.report import Report
from otel_recfn.sinks.chrome.export import export

pytestmark = pytest.mark.one_python


def tree(path: Path) -> list[tuple[str, ...]]:
    return [each.path for each in build_tree(read_processes([path])[0].batch)]


def steps_in(path: Path) -> list[StepTime]:
    (wall,) = Recording(read_processes([path])).walls
    return [step for thread in wall.threads for step in thread.steps]


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

    def row(begin: int, end: int, **columns: Any) -> dict[str, Any]:
        return {"start_ns": base_ns() + begin, "end_ns": base_ns() + end, **columns}

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
    train = events["train"]
    product = events["aten::mm"]
    memory = events["[memory]"]
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
    monkeypatch.setattr("otel_recfn.report.traces.blocks.BLOCK_BYTES", block)
    batch = read_processes([path])[0].batch
    assert [event.name for event in batch.events()] == [event["name"] for event in events]
    assert int(batch.start_ns[0]) == 7


def test_slices_nest_by_time_on_each_thread(tmp_path: Path) -> None:
    path = write_trace(
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
    path = write_trace(
        tmp_path / "t.json", slice_of("outer", 0, 10.5), slice_of("inner", 10, 0.502)
    )
    assert ("outer", "inner") in tree(path)


def test_a_slice_that_begins_in_another_and_ends_after_it_crosses(tmp_path: Path) -> None:
    path = write_trace(
        tmp_path / "t.json",
        slice_of("first", 0, 10),
        slice_of("crosses", 5, 10),
        slice_of("inner", 6, 1),
    )
    batch = read_processes([path])[0].batch
    events = {event.name: event for event in batch.events()}
    assert events["crosses"].flags & EventFlag.CROSSING
    assert events["inner"].parent == events["first"].event_id


@pytest.mark.parametrize(
    "begins",
    ["torch/autograd/profiler.py(918): __enter__", "torch/profiler/profiler.py(1227): step"],
)
def test_a_range_outlasts_the_call_that_begins_it(tmp_path: Path, begins: str) -> None:
    """As torch.profiler writes it with with_stack=True."""
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    events = []
    for at in (0, 1000):
        calls = [(begins, at, 20), ("torch/_ops.py(1267): __call__", at + 5, 12)]
        calls += [
            ("__getitem__", at + 50, 300),
            ("torch/autograd/profiler.py(932): __exit__", at + 895, 20),
        ]
        events += [slice_of(name, begin, us, cat="python_function") for name, begin, us in calls]
        events += [
            slice_of(loader, at + 10, 900, cat="user_annotation"),
            slice_of("aten::mm", at + 920, 80),
        ]
    path = write_trace(
        tmp_path / "t.json", slice_of("train.py(1): main", 0, 2001, cat="python_function"), *events
    )
    assert ("train.py(1): main", loader, "__getitem__") in tree(path)
    (first,) = Report(read_processes([path])).findings
    assert (first.rule, first.share) == ("data", pytest.approx(0.45, abs=0.01))
    assert (
        Report(read_processes([path]))
        .sentences()[2]
        .startswith("Loading data took 90% of the time")
    )


def test_what_torch_profiler_writes_of_a_gpu_and_of_itself(tmp_path: Path) -> None:
    path = write_trace(
        tmp_path / "t.json",
        slice_of("gemm", 5, 2, cat="kernel", pid=0, tid=7, args={"device": 0, "stream": 7}),
        slice_of("PyTorch Profiler (0)", 0, 90, cat="Trace", pid="Spans", tid="PyTorch Profiler"),
        slice_of("ProfilerStep#12", 0, 50, cat="user_annotation"),
        {"ph": "s", "id": 1, "pid": 1, "tid": 1, "ts": 3, "cat": "ac2g", "name": "ac2g"},
        distributedInfo={"rank": 3, "world_size": 4},
    )
    process = read_processes([path])[0]
    events = {event.name: event for event in process.batch.events()}
    assert set(events) == {"gemm", "ProfilerStep#12"}
    assert events["gemm"].device == "GPU"
    assert [step.name for step in steps_in(path)] == ["ProfilerStep#12"]
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


def test_spans_are_no_ranges_nor_is_that_of_a_step(tmp_path: Path) -> None:
    step = slice_of("train#3", 1, 5, cat="user_annotation")
    spans = [
        slice_of(name, 0, 9, cat="user_annotation", args={"span_id": "12"})
        for name in ("GET /", "train")
    ]
    path = write_trace(tmp_path / "t.json", step, *spans)
    assert tree(path) == [("train#3",)]
    found = read_processes([path])[0].spans
    assert found is not None
    assert (found.name, found.parent.tolist(), found.enclosing.tolist()) == (
        ["GET /", "train"],
        [-1, 1],
        [1],
    )


def test_a_step_is_what_its_event_says_is_one(tmp_path: Path) -> None:
    """Whatever its name is; torch.profiler's have a name."""
    annotation = {"cat": "user_annotation"}
    number = {"recfn.step.number": 3}
    path = write_trace(
        tmp_path / "t.json",
        slice_of("train#3", 0, 5, args={"Event id": 1, "Source": "STEP", **number}, **annotation),
        slice_of("a#1", 10, 5, args={"Event id": 2, "Source": "STEP"}, **annotation),
        slice_of(
            "ProfilerStep#3", 20, 5, args={"Event id": 3, "Source": "STEP", **number}, **annotation
        ),
        slice_of("decode#3", 30, 5, args={"Event id": 4, "Source": "MODULE", **number}),
        slice_of("epoch#3", 40, 5, args={"Event id": 5}, **annotation),
        slice_of("torch.compile", 50, 5, args={"Event id": 6}, **annotation),
        slice_of("other#3", 60, 5, **annotation),
        slice_of("ProfilerStep#4", 70, 5, **annotation),
    )
    step = EventSource.STEP
    block = EventSource.RECORD_FUNCTION
    events = list(read_processes([path])[0].batch.events())
    assert [(event.name, event.source, event.step_number) for event in events] == [
        ("train", step, 3),
        ("a#1", step, -1),
        ("step", step, 3),
        ("decode", EventSource.MODULE, 3),
        ("epoch#3", block, -1),
        ("torch.compile", block, -1),
        ("other#3", block, -1),
        ("ProfilerStep#4", block, -1),
    ]
    assert [each.name for each in steps_in(path)] == [
        "train#3",
        "a#1",
        "step#3",
        "ProfilerStep#4",
    ]


def test_a_training_step_that_nothing_marks_is_no_range(tmp_path: Path) -> None:
    path = write_trace(
        tmp_path / "t.json",
        slice_of("aten::mm", 10, 20),
        slice_of("ProfilerStep#3", 10, 30, cat="user_annotation", args={"recfn.step.number": 3}),
        slice_of("aten::mm", 40, 20),
    )
    assert tree(path) == [("aten::mm",)]
    assert [each[:3] for each in steps_in(path)] == [("ProfilerStep#3", 30_000, 10_000)]


@pytest.mark.parametrize(
    ("block", "wall_ns"),
    [
        (Block(base_ns(), base_ns() + 5000, 7, "main", 7)._asdict(), 5000),
        ({"start_ns": base_ns(), "end_ns": base_ns() + 5000}, 1900),
        ({**Block(base_ns(), base_ns() + 5000)._asdict(), "end_ns": "late"}, 1900),
        ([base_ns(), base_ns() + 5000], 1900),
    ],
)
def test_a_profiles_trace_says_its_block(tmp_path: Path, block: Any, wall_ns: int) -> None:
    path = exported(tmp_path / "t.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "block": block}))
    (wall,) = Recording(read_processes([path])).walls
    assert wall.ns == wall_ns


def test_events_say_what_they_lie_in(tmp_path: Path) -> None:
    """Where they do, time says nothing.

    What began later is around nothing, whatever an event says.
    """
    outer, inner, other = [
        slice_of(name, ts, dur, args={"Event id": number})
        for name, ts, dur, number in (
            ("outer", 0, 90, 1),
            ("inner", 10, 70, 2),
            ("other", 20, 30, 3),
        )
    ]
    other["args"]["Parent id"] = 1
    assert sorted(tree(write_trace(tmp_path / "t.json", outer, inner, other))) == [
        ("outer",),
        ("outer", "inner"),
        ("outer", "other"),
    ]
    other["args"]["Parent id"] = 0
    assert sorted(tree(write_trace(tmp_path / "t.json", outer, inner, other))) == [
        ("other",),
        ("outer",),
        ("outer", "inner"),
    ]
    outer["args"]["Parent id"] = 3
    assert sorted(tree(write_trace(tmp_path / "t.json", outer, inner, other))) == [
        ("other",),
        ("outer",),
        ("outer", "inner"),
    ]
    for broken in ("1", -1, 1 << 70, None, [1]):
        outer["args"]["Parent id"] = other["args"]["Parent id"] = broken
        assert ("outer", "inner", "other") in tree(
            write_trace(tmp_path / "t.json", outer, inner, other)
        )


def zipped(**files: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(f"folder/{name}.json", content)
    return made.getvalue()


BAD = {
    "empty": (b"", "is empty"),
    "blank": (b" \n" * 99, "is empty"),
    "no events": (b"[]", "has no events"),
    "no events in an object": (b'{"traceEvents": []}', "has no events"),
    "no array": (b'{"traceEvents": 5}', "has no traceEvents"),
    "text behind an object": (b'{"a": 1}}', "isn't JSON"),
    "an object that never ends": (b'{"a": "' + b"x" * 99_999, "was not written to its end"),
    "times that are none": (
        b'[{"ph": "X", "name": "a", "ts": "now"}, 7]',
        "2 of 2 events were not read: 1 without a name or",
    ),
    "zstd": (b"\x28\xb5\x2f\xfd" + b"x" * 99, "t.json is packed with zstd"),
    "xz": (lzma.compress(b"[]"), "t.json is packed with xz"),
    "damaged zip": (b"PK\x03\x04" + b"x" * 99, "is damaged"),
    "zip of two": (
        zipped(a=b"[]", b=b"[]"),
        "t.json is a zip of 2 files; unpack it, and give the traces in it\n",
    ),
    "deep in an event": (
        b'[{"ph": "X", "args": ' + b"[" * 100_000 + b"]" * 100_000 + b"}]",
        "1 not JSON",
    ),
    "a number of a million digits": (
        b'[{"ph": "X", "name": "a", "ts": ' + b"1" * 1_000_000 + b"}]",
        "1 not JSON",
    ),
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
    path = write_trace(tmp_path_factory.getbasetemp() / "odd.json", *drawn, **fields)
    try:
        processes = read_processes([path])
    except TraceFileError:
        return
    assert Report(processes).html()


def test_the_command_writes_beside_the_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = [write_trace(tmp_path / f"t.rank{rank}.json", slice_of("a", 0, 10)) for rank in (0, 1)]
    assert [process.label for process in read_processes(ranks)] == ["rank0", "rank1"]
    worker = write_trace(tmp_path / "t.rank0.pid12.json", slice_of("a", 0, 10))
    (tmp_path / "other").mkdir()
    again = write_trace(tmp_path / "other" / "t.rank0.json", slice_of("a", 0, 10))
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
    path = write_trace(tmp_path / "t.json", slice_of("aten::mm", 0, 10), slice_of("\u202e", 20, 10))
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


FORMS: dict[str, Callable[[str], bytes]] = {
    "a mark of byte order": lambda text: text.encode("utf-8-sig"),
    "UTF-16": lambda text: text.encode("utf-16"),
    "UTF-16 without a mark": lambda text: text.encode("utf-16-le"),
    "UTF-16, high bytes first": lambda text: text.encode("utf-16-be"),
    "a zip": lambda text: zipped(trace=text.encode()),
    "a gzip in a zip": lambda text: zipped(trace=gzip.compress(text.encode())),
    "a gzip in a gzip": lambda text: gzip.compress(gzip.compress(text.encode())),
    "control characters": lambda text: text.replace("aten", "\x01aten").encode(),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("block", [3, 1 << 15])
def test_encodings_and_packings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: Callable[[str], bytes], block: int
) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(form(json.dumps([slice_of("aten::mm \u4e2d", 0, 9)], ensure_ascii=False)))
    monkeypatch.setattr("otel_recfn.report.traces.blocks.BLOCK_BYTES", block)
    assert tree(path)[0][0].strip("\x01") == "aten::mm \u4e2d"


def test_times_as_text_keep_their_nanoseconds(tmp_path: Path) -> None:
    outer = slice_of("outer", "1724000000000000.123", "10.5")  # type: ignore[arg-type]
    inner = slice_of("inner", "1724000000000000.124", "10.499")  # type: ignore[arg-type]
    batch = read_processes([write_trace(tmp_path / "t.json", outer, inner)])[0].batch
    assert tree(tmp_path / "t.json") == [("outer",), ("outer", "inner")]
    assert sorted(batch.start_ns.tolist()) == [1724000000000000123, 1724000000000000124]
    assert {*batch.end_ns.tolist()} == {1724000000000010623}


def half(phase: str, at: float, name: str = "", tid: int = 1) -> dict[str, Any]:
    return {"ph": phase, "ts": at, "pid": 1, "tid": tid, **({"name": name} if name else {})}


def test_ranges_that_are_written_as_begins_and_ends(tmp_path: Path) -> None:
    path = write_trace(
        tmp_path / "t.json",
        half("B", 0, "outer"),
        half("B", 2, "inner"),
        half("B", 3, "other thread", tid=2),
        half("E", 5, "inner"),
        half("E", 9),
        half("E", 7, tid=2),
        slice_of("slice", 6, 1),
    )
    assert sorted(tree(path)) == [
        ("other thread",),
        ("outer",),
        ("outer", "inner"),
        ("outer", "slice"),
    ]
    events = {
        event.name: (event.start_ns, event.end_ns)
        for event in read_processes([path])[0].batch.events()
    }
    assert events == {
        "outer": (0, 9000),
        "inner": (2000, 5000),
        "other thread": (3000, 7000),
        "slice": (6000, 7000),
    }


def test_what_was_open_when_the_trace_ended_lasts_until_then(tmp_path: Path) -> None:
    path = write_trace(
        tmp_path / "t.json",
        half("E", 1),
        half("B", 2, "hangs"),
        slice_of("inside", 3, 6),
        slice_of("a", 5, 9, tid=2),
    )
    process = read_processes([path])[0]
    hangs = next(event for event in process.batch.events() if event.name == "hangs")
    assert (hangs.start_ns, hangs.end_ns, hangs.flags) == (2000, 14_000, EventFlag.PARTIAL)
    assert ("hangs", "inside") in tree(path)
    assert process.left_out == "1 of 4 events was not read: 1 without a begin"


def test_what_is_not_read_is_counted_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.json"
    good = json.dumps(slice_of("aten::mm", 0, 9))
    names = json.dumps(
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "main"}}
    )
    arrow, counter = (
        json.dumps({"ph": phase, "name": "a", "ts": 1, "pid": 1, "args": {}}) for phase in "sC"
    )
    legacy = json.dumps({"ph": "S", "name": "a", "ts": 1, "id": 1, "pid": 1})
    long = json.dumps(slice_of("long", 0, 9, args={"a": "x" * (5 << 20)}))
    path.write_text(
        "["
        + ",\n".join(
            [good, names, '{"ph": X}', arrow, counter, legacy, long, '"a"', good, '{"ph": "X", "na']
        )
    )
    expected = "5 of 10 events were not read: "
    assert main(["report", str(path), "--format", "md"]) == 0
    said = capsys.readouterr().out
    assert expected in said.replace("\\", "")
    for reason in (
        "1 not an object",
        "1 of phase S",
        "1 not JSON",
        "1 longer than 4 MiB",
        "1 cut off",
    ):
        assert reason in said
    assert "| `aten::mm` | 100.00% | 9.000us | 18.000us | 2 |" in said
    assert main(["report", str(path), "--format", "json"]) == 0
    assert expected in json.loads(capsys.readouterr().out)["notes"][0]
    assert main(["report", str(path)]) == 0
    assert expected in capsys.readouterr().err
    assert expected in path.with_suffix(".html").read_text()
    assert (
        main(["report", str(write_trace(path, slice_of("aten::mm", 0, 9))), "--format", "md"]) == 0
    )
    assert "not read" not in capsys.readouterr().out


def steering_signs(text: str) -> set[str]:
    return {
        sign for sign in text if unicodedata.category(sign)[0] == "C" or sign in "\u2028\u2029"
    } - {"\n"}


def test_no_name_steers_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steering = "\x1b]0;title\x07\x9b31m\u202ered\u2066\u200b\x7f\ud800\U000e0041"
    script = {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": f"{steering}\n.py"}}
    one = write_trace(tmp_path / "a.json", slice_of(steering, 0, 9), script)
    other = write_trace(
        tmp_path / "b.json", slice_of("a", 0, 9), {**script, "args": {"name": "other.py"}}
    )
    for form in ("md", "json"):
        assert main(["report", str(one), "--format", form]) == 0
    assert main(["report", str(one), "-o", str(tmp_path / "a.md")]) == 0
    assert main(["report", str(one), str(other)]) == 2
    said = capsys.readouterr()
    for text in (said.out, said.err, (tmp_path / "a.md").read_text()):
        assert "red" in text
        assert not steering_signs(text)
    assert said.err.count("\n") == 1


def test_a_report_never_takes_the_place_of_its_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = write_trace(tmp_path / "t.json", slice_of("a", 0, 9))
    text = trace.read_text()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.html").symlink_to("t.json")
    (tmp_path / "hard.html").hardlink_to(trace)
    for out in (str(trace), f"../{tmp_path.name}/t.json", "./t.json", "link.html", "hard.html"):
        assert main(["report", "t.json", "-o", out, "--format", "html"]) == 2
        assert trace.read_text() == text
    (tmp_path / "t.html").symlink_to("t.json")
    assert main(["report", "t.json"]) == 2
    assert trace.read_text() == text


def test_a_new_report_is_for_its_user_alone(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.json", slice_of("a", 0, 9))
    for name in ("a.html", "a.md", "a.json"):
        assert main(["report", str(trace), "-o", str(tmp_path / name)]) == 0
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    (tmp_path / "a.md").chmod(0o644)
    assert main(["report", str(trace), "-o", str(tmp_path / "a.md")]) == 0
    assert stat.S_IMODE((tmp_path / "a.md").stat().st_mode) == 0o644


@given(st.data())
def test_a_damaged_trace_is_shown_or_refused_in_a_line(
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
    data: st.DataObject,
) -> None:
    """Bytes of a trace that are cut out, put in, or changed, also before it is packed or behind
    that.
    """
    slices = [
        slice_of(
            f"op\x1b {number}", number * 10, 5, args={"Ev Idx": number, "a": ["[", {"b": "}"}]}
        )
        for number in range(5)
    ]
    halves = [
        half("B", 3, "half"),
        half("E", 30),
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "main"}},
    ]
    text = json.dumps(
        {"schemaVersion": 1, "traceEvents": slices + halves, "baseTimeNanoseconds": 7}
    ).encode()
    pack = data.draw(
        st.sampled_from(
            [bytes, gzip.compress, lambda packed: zipped(t=packed), lambda text: text[36:]]
        )
    )
    damaged = _damaged(pack(_damaged(text, data)), data)
    path = tmp_path_factory.getbasetemp() / "damaged.json"
    path.write_bytes(damaged)
    code = main(["report", str(path), "--format", "md"])
    said = capsys.readouterr()
    assert code in (0, 2)
    assert said.err.count("\n") == (code == 2)
    assert not steering_signs(said.out + said.err)


def _damaged(text: bytes, data: st.DataObject) -> bytes:
    for _ in range(data.draw(st.integers(0, 2))):
        begin = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(begin, min(len(text), begin + 40)) | st.just(len(text)))
        put_in = st.binary(max_size=4) | st.sampled_from(
            [b'"', b"[" * 3000, b"NaN", b"1e999", b"\xff", b'"ph":1,', b"null", b"9" * 5000]
        )
        text = text[:begin] + data.draw(put_in) + text[end:]
    return text
