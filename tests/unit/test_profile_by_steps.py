"""profile(...) with what torch.profiler.profile takes: schedules, steps, a handler, stacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from otel_recfn import profile, record_function
from otel_recfn.model.errors import RecfnError, SettingError


def cycle(number: int) -> str:
    """As ``torch.profiler.schedule(wait=1, warmup=1, active=2)``."""
    return ("NONE", "WARMUP", "RECORD", "RECORD_AND_SAVE")[number % 4]


def train(prof: profile, steps: int) -> None:
    for number in range(steps):
        with record_function(f"work {number}"):
            pass
        prof.step()


def test_the_steps_of_a_schedule_are_recorded_and_each_cycle_is_handed_over() -> None:
    ready: list[list[str]] = []
    with profile(schedule=cycle, on_trace_ready=lambda prof: ready.append([event.name for event in prof.events()])) as prof:
        train(prof, 9)
    assert ready == [
        ["ProfilerStep#2", "work 2", "ProfilerStep#3", "work 3"],
        ["ProfilerStep#6", "work 6", "ProfilerStep#7", "work 7"],
    ]
    assert prof.step_num == 9


def test_what_is_recorded_at_the_end_is_handed_over_too() -> None:
    ready: list[int] = []
    with profile(schedule=cycle, on_trace_ready=lambda prof: ready.append(len(prof.events()))) as prof:
        train(prof, 2)
        with record_function("in the middle"):
            pass
    assert ready == [2]


def test_without_a_schedule_all_is_one_recording() -> None:
    ready: list[Any] = []
    with profile(on_trace_ready=ready.append) as prof:
        train(prof, 3)
    assert ready == [prof]
    assert [event.name for event in prof.events()] == ["work 0", "work 1", "work 2"]


def test_what_the_handler_raises_is_the_programs_and_nothing_records_on() -> None:
    def refuse(prof: profile) -> None:
        raise ValueError("full")

    prof = profile(on_trace_ready=refuse)
    prof.start()
    with pytest.raises(ValueError, match="full"):
        prof.stop()
    prof.stop()
    prof.start()
    with pytest.raises(ValueError, match="full"):
        prof.stop()


def test_a_step_outside_of_a_run_is_refused() -> None:
    with pytest.raises(RecfnError, match="isn't running"):
        profile().step()


@pytest.mark.parametrize("name", ["with_tack", "execution_observer"])
def test_what_it_does_not_take_is_said(name: str) -> None:
    with pytest.raises(SettingError, match=rf"profile\(\) has no {name}; it has scopes, .*schedule, on_trace_ready"):
        profile(**{name: None})


OF_TORCH_PROFILER_ALONE = {
    "acc_events": True,
    "custom_trace_id_callback": str,
    "execution_trace_observer": object(),
    "experimental_config": object(),
    "use_cuda": True,
}


@pytest.mark.parametrize("name", OF_TORCH_PROFILER_ALONE)
def test_what_torch_profiler_alone_does_is_refused_with_the_way_out(name: str) -> None:
    with pytest.raises(SettingError, match=rf"{name}=.* is for torch\.profiler alone; leave it out, or use torch\.profiler"):
        profile(**{name: OF_TORCH_PROFILER_ALONE[name]})


def test_what_torch_profiler_takes_by_default_changes_nothing() -> None:
    by_default = dict.fromkeys(OF_TORCH_PROFILER_ALONE) | {"acc_events": False, "use_cuda": False}
    with profile(**by_default, post_processing_timeout_s=1.0) as prof, record_function("work"):
        pass
    assert [event.name for event in prof.events()] == ["work"]


def test_activities_of_a_gpu_are_refused() -> None:
    with pytest.raises(SettingError, match="what a GPU does is not recorded"):
        profile(activities=["CPU", "CUDA"])


def test_stacks_for_flame_graphs(tmp_path: Path) -> None:
    with profile(with_stack=True) as prof, record_function("outer"):
        sum(range(200_000))
    prof.export_stacks(tmp_path / "stacks.txt")
    [line] = (tmp_path / "stacks.txt").read_text().splitlines()
    stack, _, us = line.rpartition(" ")
    assert " " not in stack
    assert "test_stacks_for_flame_graphs" in stack.split(";")[-1]
    assert int(us) > 0
    with pytest.raises(SettingError, match="with_stack=True"):
        profile().export_stacks(tmp_path / "none.txt")
