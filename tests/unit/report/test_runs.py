"""Which of several trace files a report reads: those of the newest run, of one program."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from written_traces import slice_of, write_trace

from otel_recfn.cli import main
from otel_recfn.errors import TraceFileError
from otel_recfn.report.files import read_processes

pytestmark = pytest.mark.one_python


def test_files_that_are_not_of_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = write_trace(tmp_path / "a.json", slice_of("a", 0, 10))
    other = write_trace(tmp_path / "b.json", slice_of("b", 3_600e6, 10))
    assert main(["report", str(other), str(one)]) == 2
    assert "b.json begins 3600 s after" in capsys.readouterr().err
    named = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": script}}
        for script in ("train.py", "serve.py")
    ]
    programs = [
        write_trace(tmp_path / f"{each['args']['name']}.json", each, slice_of("a", 0, 10))
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


def write_traces(folder: Path, *runs: tuple[str, str, float]) -> list[Path]:
    """Write traces of ours, each given by its name, its run, and its begin in seconds; each records
    for ten.
    """
    paths = []
    for name, run, begin_s in runs:
        process = {
            "ph": "M",
            "name": "process_name",
            "pid": 1,
            "args": {"name": "train.py", "run": run},
        }
        paths.append(
            write_trace(
                folder / f"{name}.json",
                *([process] if run else []),
                slice_of("a", begin_s * 1e6, 10e6),
            )
        )
    return paths


def read(paths: list[Path]) -> list[str]:
    """The files that a report of these reads."""
    return [process.path.stem for process in read_processes(paths) if process.path is not None]


def test_a_report_reads_the_newest_run_and_says_what_it_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    older = [(f"t.pid{number}", "one", 0.0) for number in range(7)]
    paths = write_traces(tmp_path, *older, ("t", "two", 20.0), ("t.pid9", "two", 7200.0))
    assert read(paths) == ["t", "t.pid9"], (
        "however far apart, since they say that they are of one run"
    )
    assert main(["report", *map(str, paths), "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["title"], report["processes"]) == ("t.json and 1 more", ["t.json", "pid9"])
    named = ", ".join(f"t.pid{number}.json" for number in range(5))
    assert report["notes"] == [
        f"Left out, as they are of older runs (--all-runs reads them): {named} and 2 more."
    ]
    assert main(["report", *map(str, paths)]) == 0
    said = capsys.readouterr()
    assert said.out == f"{tmp_path / 't.html'}\n"
    assert said.err == f"otel-recfn report: {report['notes'][0]}\n"


def test_runs_at_the_same_time_are_shown_side_by_side(tmp_path: Path) -> None:
    """Ranks are launched one by one."""
    ranks = [("t.rank0", "a", 100.0), ("t.rank1", "b", 105.0), ("t.rank2", "c", 111.0)]
    paths = write_traces(tmp_path, ("t.rank3", "old", 80.0), *ranks, ("t.rank0.pid7", "a", 95.0))
    assert read(paths) == ["t.rank0", "t.rank1", "t.rank2", "t.rank0.pid7"]


def test_files_of_all_runs_are_read_where_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of ranks of one job that never record at the same time."""
    paths = write_traces(
        tmp_path, ("t.rank0", "one", 0.0), ("t.rank1", "two", 7200.0), ("kineto", "", 60.0)
    )
    assert main(["report", *map(str, paths), "--all-runs", "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["processes"], report["notes"]) == (["rank0", "rank1", "kineto.json"], [])


def test_an_older_run_of_another_program_is_left_out(tmp_path: Path) -> None:
    (newest,) = write_traces(tmp_path, ("t", "two", 20.0))
    named = {
        "ph": "M",
        "name": "process_name",
        "pid": 1,
        "args": {"name": "serve.py", "run": "one"},
    }
    assert read([newest, write_trace(tmp_path / "t.pid1.json", named, slice_of("a", 0, 10))]) == [
        "t"
    ]


def test_traces_that_say_of_no_run_are_read_with_the_newest(tmp_path: Path) -> None:
    paths = write_traces(
        tmp_path,
        ("old", "one", 0.0),
        ("t", "two", 20.0),
        ("kineto", "", 60.0),
        ("late", "", 7200.0),
    )
    assert read(paths[:3]) == ["t", "kineto"]
    with pytest.raises(TraceFileError, match=r"late.json begins 7130 s after .*kineto.json ends"):
        read_processes(paths)
    long = write_trace(tmp_path / "long.json", slice_of("a", 0, 7200e6))
    assert read([long, *paths[2:]]) == ["long", "kineto", "late"]
