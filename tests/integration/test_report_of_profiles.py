"""Reports of profiles, and of trace files of the same run: they say the same."""

from __future__ import annotations

import asyncio
import contextvars
import json
import re
import threading
import webbrowser
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from otel_recfn import OtelRecordFunctionInstrumentor, profile, record_function, step
from otel_recfn.batches.averages import key_averages
from otel_recfn.batches.build_tree import build_tree
from otel_recfn.errors import SettingError, TraceFileError
from otel_recfn.report.files import read_processes
from otel_recfn.report.report import Report

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from helpers.timeouts import PATIENCE_S  # noqa: E402
from helpers.torch_programs import reentrant_training  # noqa: E402
from helpers.trace_files import events_in  # noqa: E402


def train(steps: int = 3) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    for number in range(steps):
        with step("train", number), record_function("block"):
            model(torch.ones(4, 8)).sum().backward()


def page_data(page: str) -> dict[str, Any]:
    found = re.search(r'id="data">(.*?)</script>', page)
    assert found
    data: dict[str, Any] = json.loads(found[1])
    return data


def paths(page: str) -> dict[tuple[str, ...], int]:
    """How often each path of the flame graph was called."""
    data = page_data(page)
    named = list[tuple[str, ...]]()
    flame = data["flame"]
    for name, above in zip(flame["name"], flame["above"], strict=True):
        named.append((*(named[above] if above >= 0 else ()), data["names"][name]))
    return dict(zip(named, flame["count"], strict=True))


def test_a_profile_and_its_trace_show_the_same(tmp_path: Path) -> None:
    with profile(profile_memory=True) as prof:
        train()
    prof.report(tmp_path / "step.html")
    prof.export_chrome_trace(tmp_path / "trace.json.gz")
    from_profile = (tmp_path / "step.html").read_text()
    from_file = Report(read_processes([tmp_path / "trace.json.gz"])).html()
    assert paths(from_profile) == paths(from_file)
    assert paths(from_profile)["train", "block", "Sequential", "Linear", "aten::linear"] == 3
    for column in ("self", "allocated"):
        assert (
            sum(page_data(from_profile)["flame"][column])
            == sum(page_data(from_file)["flame"][column])
            > 0
        )
    assert [each for each in page_data(from_file)["timeline"]["step"] if each >= 0] == [0, 1, 2]


def tasks_of_a_thread() -> None:
    """One waits in a block, in which another one computes by time; a third one's blocks are
    asynchronous.
    """

    async def waits(done: asyncio.Event) -> None:
        with record_function("wait for reply"):
            await done.wait()
            torch.ones(2).neg()

    async def computes(done: asyncio.Event) -> None:
        await asyncio.sleep(0)
        with record_function("compute"):
            torch.ones(2).add(1)
            done.set()
            await asyncio.sleep(0)
            torch.ones(2).mul(2)

    async def in_asynchronous_blocks() -> None:
        async with record_function("outer"):
            torch.ones(2).abs()
            await asyncio.sleep(0)
            async with record_function("inner"):
                await asyncio.sleep(0)
                torch.ones(2).exp()

    async def main() -> None:
        done = asyncio.Event()
        await asyncio.gather(waits(done), computes(done), in_asynchronous_blocks())

    asyncio.run(main())


def blocks_that_end_in_another_order() -> None:
    first = record_function("first")
    second = record_function("second")
    first.__enter__()
    torch.ones(2).neg()
    second.__enter__()
    torch.ones(2).abs()
    first.__exit__(None, None, None)
    torch.ones(2).exp()
    second.__exit__(None, None, None)


def work_of_other_threads() -> None:
    """That of a fork of TorchScript's, and of threads that work for a block, one of them after
    its end.
    """
    begun = threading.Event()
    over = threading.Event()

    def part() -> None:
        with record_function("part"):
            begun.set()
            over.wait(PATIENCE_S)
            torch.ones(2).neg()

    threads = []
    for name in ("waits", "goes on"):
        with record_function(name):
            thread = threading.Thread(target=contextvars.copy_context().run, args=(part,))
            threads.append(thread)
            thread.start()
            assert begun.wait(PATIENCE_S)
            if name == "waits":
                over.set()
                thread.join(PATIENCE_S)
        begun.clear()
        if name == "waits":
            over.clear()
        else:
            over.set()
    threads[-1].join(PATIENCE_S)


@pytest.mark.parametrize(
    "work", [tasks_of_a_thread, blocks_that_end_in_another_order, work_of_other_threads]
)
def test_where_time_does_not_tell_what_a_range_lies_in_its_event_says_it(
    work: Callable[[], None], tmp_path: Path
) -> None:
    with profile() as prof:
        work()
    prof.report(tmp_path / "profile.html")
    prof.export_chrome_trace(tmp_path / "trace.json.gz")
    from_profile = (tmp_path / "profile.html").read_text()
    from_file = Report(read_processes([tmp_path / "trace.json.gz"])).html()
    assert paths(from_profile) == paths(from_file)
    for column in ("total", "self"):
        assert by_path(from_profile, column) == by_path(from_file, column)


def test_spans_of_the_program_are_around_ranges_and_take_none_of_their_time(
    instrumentor: OtelRecordFunctionInstrumentor, tmp_path: Path
) -> None:
    """They are in the flame graph and the time line, and no rows of the table."""
    provider = TracerProvider(shutdown_on_exit=False)
    instrumentor.instrument(tracer_provider=provider, chrome_trace=tmp_path / "trace.json.gz")
    tracer = provider.get_tracer("test")
    for _ in range(2):
        with tracer.start_as_current_span("request"):
            with record_function("outer"), tracer.start_as_current_span("without ranges"):
                pass
            with tracer.start_as_current_span("part"), record_function("part"):
                torch.ones(2)
    instrumentor.uninstrument()
    [process] = read_processes([tmp_path / "trace.json.gz"])
    page = Report([process]).html()
    shown_paths = {
        path: count for path, count in paths(page).items() if not path[-1].startswith("aten::")
    }
    # Else the machine made a thread wait.
    if all(each == "X" for each in span_phases(tmp_path / "trace.json.gz")):
        request, part = ("request",), ("request", "part")
        assert shown_paths == {request: 0, (*request, "outer"): 2, part: 0, (*part, "part"): 2}
    assert not [path for path in shown_paths if path[-1] == "without ranges"]
    names = page_data(page)["names"]
    data = page_data(page)
    rows = dict(
        zip([names[index] for index in data["table"]["name"]], data["table"]["count"], strict=True)
    )
    assert (rows["outer"], rows["part"]) == (2, 2)
    assert not {"request", "without ranges"} & set(rows)
    boxes = Counter(names[index] for index in data["timeline"]["name"] if index >= 0)
    assert (boxes["request"], boxes["part"], boxes["without ranges"]) == (2, 4, 2)
    sums = {each.path[-1]: each.self_cpu_time_total for each in build_tree(process.batch)}
    own = dict(
        zip([names[index] for index in data["table"]["name"]], data["table"]["self"], strict=True)
    )
    assert own["outer"] / 1000 == pytest.approx(sums["outer"])


def span_phases(path: Path) -> list[str]:
    return [event["ph"] for event in events_in(path, "Xb") if "span_id" in event["args"]]


def by_path(page: str, column: str) -> dict[tuple[str, ...], int]:
    return dict(zip(paths(page), page_data(page)["flame"][column], strict=True))


@pytest.mark.parametrize(
    "record", [profile, torch.profiler.profile], ids=["ours", "torch.profiler"]
)
def test_backward_in_a_thread_of_autograds_lies_where_a_profile_has_it(
    record: Callable[[], Any], tmp_path: Path
) -> None:
    with profile() as prof, record() as recorded, record_function("train"):
        reentrant_training(torch.tensor(130.0, requires_grad=True))
    recorded.export_chrome_trace(str(tmp_path / "trace.json"))
    from_file = build_tree(read_processes([tmp_path / "trace.json"])[0].batch)
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
        for each in build_tree(read_processes([tmp_path / "trace.json"])[0].batch)
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
    data = {each.key: each for each in theirs.key_averages()}
    assert set(data) <= set(ours)
    assert data["aten::linear"].count == 3
    for name, each in data.items():
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
