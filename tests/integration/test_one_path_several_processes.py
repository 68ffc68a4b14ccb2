"""Processes that are given one path, one after another or at once: none replaces what another
one has written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.trace_files import names_in
from otel_recfn.cli import main

Run = Callable[..., Any]

RECORDS = """
import sys
from otel_recfn import OtelRecordFunctionInstrumentor, record_function
OtelRecordFunctionInstrumentor().instrument(chrome_trace="trace.json")
with record_function(sys.argv[1]):
    pass
"""
FORKED = """
import logging, os, sys
from otel_recfn import OtelRecordFunctionInstrumentor, record_function
logging.basicConfig(level=sys.argv[1])
instrumentor = OtelRecordFunctionInstrumentor()
instrumentor.instrument(chrome_trace="trace.json")
for name in ("first", "second"):
    pid = os.fork()
    if pid == 0:
        with record_function(name):
            pass
        instrumentor.flush()  # CPython 3.12 starts no thread at the end
        sys.exit()
    assert os.waitpid(pid, 0)[1] == 0
"""
RECORDED_IN_CHILDREN = """
import multiprocessing, os
from concurrent.futures import ProcessPoolExecutor
from otel_recfn import OtelRecordFunctionInstrumentor, record_function

def work(name):
    instrumentor = OtelRecordFunctionInstrumentor()
    instrumentor.instrument(chrome_trace="trace.json")
    with record_function(name):
        pass
    instrumentor.uninstrument()

def forked(name):
    pid = os.fork()
    if pid == 0:
        work(name)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0

def started(method, name):
    process = multiprocessing.get_context(method).Process(target=work, args=(name,))
    process.start()
    process.join()
    assert process.exitcode == 0

def pooled(name):
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        pool.submit(work, name).result()

if __name__ == "__main__":
    for name in ("first", "second"):
        {start}
"""
WITH_CHILDREN = """
import multiprocessing, sys
from otel_recfn import OtelRecordFunctionInstrumentor, record_function

def work(name):
    with record_function(name):
        pass
    assert OtelRecordFunctionInstrumentor().flush(60)

def started(method, target, *args):
    process = multiprocessing.get_context(method).Process(target=target, args=args)
    process.start()
    process.join()
    assert process.exitcode == 0

if __name__ == "__main__":
    OtelRecordFunctionInstrumentor().instrument(chrome_trace="trace.json")
    work(sys.argv[1])
    for method in ("fork", "forkserver", "spawn"):
        started(method, work, sys.argv[1])
    started("spawn", started, "spawn", work, sys.argv[1])
"""
CHILDREN = {
    "fork": "forked(name)",
    "multiprocessing fork": "started('fork', name)",
    "multiprocessing spawn": "started('spawn', name)",
    "multiprocessing forkserver": "started('forkserver', name)",
    "pool": "pooled(name)",
}
RANKS = {
    "RANK": (
        {"RANK": "0", "LOCAL_RANK": "0", "SLURM_PROCID": "7"},
        {"RANK": "13", "LOCAL_RANK": "5", "SLURM_PROCID": "7"},
    ),
    "LOCAL_RANK": ({"LOCAL_RANK": "0"}, {"LOCAL_RANK": "13"}),
    "SLURM_PROCID": (
        {"SLURM_PROCID": "0", "SLURM_LOCALID": "0"},
        {"SLURM_PROCID": "13", "SLURM_LOCALID": "0"},
    ),
    "OMPI_COMM_WORLD_RANK": ({"OMPI_COMM_WORLD_RANK": "0"}, {"OMPI_COMM_WORLD_RANK": "13"}),
    "PMI_RANK": ({"PMI_RANK": "0"}, {"PMI_RANK": "13"}),
}


def written(folder: Path) -> dict[str, list[str]]:
    """The ranges, by file."""
    return {path.name: names_in(path) for path in folder.glob("*.json")}


@pytest.mark.parametrize("variable", RANKS)
def test_ranks_one_after_another(run_program: Run, tmp_path: Path, variable: str) -> None:
    logged = [run_program(RECORDS, f"rank {rank}", **rank).stderr for rank in RANKS[variable]]
    found = written(tmp_path)
    assert sorted(found) == ["trace.rank0.json", "trace.rank13.json"]
    assert [len(names) for names in found.values()] == [1, 1]
    assert [text.count("trace.rank") for text in logged] == [1, 1]


def test_a_rank_that_is_started_again(run_program: Run, tmp_path: Path) -> None:
    for restarts in ("0", "1"):
        run_program(RECORDS, f"attempt {restarts}", RANK="2", TORCHELASTIC_RESTART_COUNT=restarts)
    assert written(tmp_path) == {
        "trace.rank2.json": ["attempt 0"],
        "trace.rank2.restart1.json": ["attempt 1"],
    }


@pytest.mark.parametrize("way", CHILDREN)
def test_children_one_after_another(run_program: Run, tmp_path: Path, way: str) -> None:
    logged = run_program(RECORDED_IN_CHILDREN.replace("{start}", CHILDREN[way])).stderr
    found = written(tmp_path)
    assert sorted(found.values()) == [["first"], ["second"]]
    assert all(re.fullmatch(r"trace\.pid\d+\.json", name) for name in found)
    assert [logged.count(name) for name in found] == [1, 1]


def test_children_of_a_rank(run_program: Run, tmp_path: Path) -> None:
    program = RECORDED_IN_CHILDREN.replace("{start}", CHILDREN["multiprocessing spawn"])
    run_program(program, RANK="3")
    assert all(re.fullmatch(r"trace\.rank3\.pid\d+\.json", name) for name in written(tmp_path))
    assert sorted(written(tmp_path).values()) == [["first"], ["second"]]


def test_a_report_of_all_files_shows_the_processes_of_the_last_run(
    run_program: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("first", "second"):
        run_program(WITH_CHILDREN, name)
    paths = sorted(tmp_path.glob("*.json"))
    assert sorted(written(tmp_path).values()) == [["first"]] * 4 + [["second"]] * 5
    assert main(["report", *map(str, paths), "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [(each["name"], each["count"]) for each in report["by_name"]] == [("second", 5)]
    (left_out,) = report["notes"]
    assert left_out.startswith("Left out, as they are of older runs (--all-runs reads them): ")
    assert left_out.count("trace.pid") == 4


def test_ranks_of_one_torchrun_are_of_one_run_though_they_never_run_at_once(
    run_program: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def launch(folder: str, ranks: int) -> None:
        for rank in range(ranks):
            error_file = f"/tmp/torchelastic_{folder}/none_{folder}/attempt_0/{rank}/error.json"
            torchs = {
                "TORCHELASTIC_RUN_ID": "none",
                "TORCHELASTIC_ERROR_FILE": error_file,
                "MASTER_PORT": "29500",
            }
            run_program(RECORDS, f"{folder} {rank}", RANK=str(rank), **torchs)

    launch("first", ranks=3)
    launch("second", ranks=2)
    paths = sorted(tmp_path.glob("*.json"))
    assert main(["report", *map(str, paths), "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["processes"] == ["rank0", "rank1"]
    assert sorted(each["name"] for each in report["by_name"]) == ["second 0", "second 1"]


@pytest.mark.parametrize(("level", "times"), [("WARNING", 0), ("INFO", 1)])
def test_children_that_are_recorded_already(
    run_program: Run, tmp_path: Path, level: str, times: int
) -> None:
    """The log tells of them whoever asks for it: a program may make thousands."""
    logged = run_program(FORKED, level).stderr
    found = written(tmp_path)
    assert found.pop("trace.json") == []
    assert sorted(found.values()) == [["first"], ["second"]]
    assert [logged.count(name) for name in found] == [times, times]
