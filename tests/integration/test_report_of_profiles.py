"""Reports of profiles, and of trace files of the same run: they say the same."""

from __future__ import annotations

import json
import re
import threading
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_recfn import profile, record_function, step
from otel_recfn.batches.averages import key_averages
from otel_recfn.batches.call_tree import tree_of_rows
from otel_recfn.errors import SettingError, TraceFileError
from otel_recfn.report.files import read_processes
from otel_recfn.report.report import Report

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch_programs import reentrant_training  # noqa: E402


def train(steps: int = 3) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    for number in range(steps):
        with step("train", number), record_function("block"):
            model(torch.ones(4, 8)).sum().backward()


def shown(page: str) -> dict[str, Any]:
    found = re.search(r'id="data">(.*?)</script>', page)
    assert found
    told: dict[str, Any] = json.loads(found[1])
    return told


def paths(page: str) -> dict[tuple[str, ...], int]:
    """How often each path of the flame graph was called."""
    told, named = shown(page), list[tuple[str, ...]]()
    flame = told["flame"]
    for name, above in zip(flame["name"], flame["above"], strict=True):
        named.append((*(named[above] if above >= 0 else ()), told["names"][name]))
    return dict(zip(named, flame["count"], strict=True))


def test_a_profile_and_its_trace_show_the_same(tmp_path: Path) -> None:
    with profile(profile_memory=True) as prof:
        train()
    prof.report(tmp_path / "step.html")
    prof.export_chrome_trace(tmp_path / "trace.json.gz")
    from_profile = (tmp_path / "step.html").read_text()
    from_file = Report(read_processes([tmp_path / "trace.json.gz"])).html()
    assert paths(from_profile) == paths(from_file)
    assert (
        paths(from_profile)[
            "train", "block", "nn.Module: Sequential_0", "nn.Module: Linear_0", "aten::linear"
        ]
        == 3
    )
    for column in ("self", "allocated"):
        assert (
            sum(shown(from_profile)["flame"][column]) == sum(shown(from_file)["flame"][column]) > 0
        )
    assert [each for each in shown(from_file)["timeline"]["step"] if each >= 0] == [0, 1, 2]


@pytest.mark.parametrize(
    "record", [profile, torch.profiler.profile], ids=["ours", "torch.profiler"]
)
def test_backward_in_a_thread_of_autograds_lies_where_a_profile_has_it(
    record: Callable[[], Any], tmp_path: Path
) -> None:
    with profile() as prof, record() as recorded, record_function("train"):
        reentrant_training(torch.tensor(130.0, requires_grad=True))
    recorded.export_chrome_trace(str(tmp_path / "trace.json"))
    from_file = tree_of_rows(read_processes([tmp_path / "trace.json"])[0].batch)
    assert len(prof.tree("thread")) > len(prof.tree("name"))  # it took another thread
    assert {each.path: each.count for each in prof.tree()} == {
        each.path: each.count for each in from_file
    }


def test_backward_in_a_thread_of_pythons_is_outermost(tmp_path: Path) -> None:
    with profile() as prof, record_function("train"):
        loss = torch.ones(2, requires_grad=True).sum()
        worker = threading.Thread(target=loss.backward)
        worker.start()
        worker.join()
    prof.export_chrome_trace(tmp_path / "trace.json")
    outermost = {
        each.path
        for each in tree_of_rows(read_processes([tmp_path / "trace.json"])[0].batch)
        if len(each.path) == 1
    }
    assert outermost == {each.path for each in prof.tree() if len(each.path) == 1}
    assert len(outermost) > 1


def test_a_trace_of_torch_profiler_has_the_names_and_counts_that_it_tells(tmp_path: Path) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
        train()
    theirs.export_chrome_trace(str(tmp_path / "kineto.json"))
    ours = {
        each.key: each for each in key_averages(read_processes([tmp_path / "kineto.json"])[0].batch)
    }
    told = {
        each.key: each for each in theirs.key_averages() if each.key != "aten::sum"
    }  # they count one in another once
    assert set(told) <= set(ours)
    assert told["aten::linear"].count == 3
    for name, each in told.items():
        assert each.count == ours[name].count
        assert each.self_cpu_time_total == pytest.approx(
            ours[name].self_cpu_time_total, abs=0.01 * each.count
        )


def test_the_ending_says_what_is_written(tmp_path: Path) -> None:
    with profile() as prof:
        train()
    prof.report(str(tmp_path / "r.md"))
    assert "aten::addmm" in (tmp_path / "r.md").read_text()
    prof.report(tmp_path / "r.json")
    assert json.loads((tmp_path / "r.json").read_text())["by_name"]
    with pytest.raises(SettingError, match="allowed: html, md, json"):
        prof.report(tmp_path / "r.pdf")


def test_nothing_to_show(tmp_path: Path) -> None:
    with profile() as prof:
        pass
    with pytest.raises(TraceFileError, match="run something while the profile records"):
        prof.report(tmp_path / "r.html")


@pytest.mark.parametrize("screen", [True, False])
def test_show_opens_a_browser_where_there_is_a_screen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, screen: bool
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.delenv("DISPLAY", raising=False)
    if screen:
        monkeypatch.setenv("DISPLAY", ":0")
    with profile() as prof:
        train()
    path = Path(prof.show())
    assert path.parent == tmp_path
    assert path.read_text().startswith("<!doctype html>")
    assert opened == ([path.as_uri()] if screen else [])
