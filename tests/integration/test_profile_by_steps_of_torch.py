"""profile(...) with torch.profiler's own schedule, activities and handler."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import pytest

from otel_recfn import profile

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch

PAGE = (Path(__file__).parents[2] / "docs" / "profile.md").read_text(encoding="utf-8")


def test_torchs_own_schedule_activities_and_handler(tmp_path: Path) -> None:
    handler = torch.profiler.tensorboard_trace_handler(str(tmp_path))
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=1)
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with profile(
        activities=cpu, schedule=schedule, on_trace_ready=handler, with_modules=True
    ) as prof:
        for _ in range(6):
            torch.nn.Linear(2, 2)(torch.ones(2, 2))
            prof.step()
    [file] = tmp_path.iterdir()
    named = {event["name"] for event in json.loads(file.read_text())["traceEvents"]}
    assert {"ProfilerStep#2", "ProfilerStep#3", "aten::linear", "nn.Module: Linear_0"} <= named
    assert "ProfilerStep#4" not in named


def test_the_page_names_the_methods_that_are_not_here() -> None:
    [said] = re.findall(r"torch\.profiler's alone: (.*?)\.\n", PAGE, re.DOTALL)
    missing = {name for name in dir(torch.profiler.profile) if name[0] != "_"} - {*dir(profile)}
    assert missing <= {*re.findall(r"`(\w+)`", said)}
    assert not {name for name in re.findall(r"`(\w+)`", said) if hasattr(profile, name)}


def test_every_default_of_torchs_own_is_taken() -> None:
    taken = inspect.signature(torch.profiler.profile).parameters
    assert {"acc_events", "execution_trace_observer"} & set(taken)
    with profile(**{name: each.default for name, each in taken.items()}) as prof:
        torch.ones(2)
    assert "aten::ones" in [event.name for event in prof.events()]
