"""profile(...): a capture of its own, with the questions one asks a profile, and what
torch.profiler.profile takes.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from helpers.timeouts import PATIENCE_S
from helpers.trace_files import read_trace
from otel_recfn import RecordScope, profile, record_function
from otel_recfn.cli import main
from otel_recfn.errors import RecfnError, SettingError


def names(prof: profile) -> list[str]:
    return [event.name for event in prof.events()]


def test_events_are_the_ranges_in_start_order_with_parents_and_self_times() -> None:
    with profile() as prof, record_function("outer"):
        with record_function("first"):
            pass
        with record_function("second"):
            pass
    outer, first, second = prof.events()
    assert [event.name for event in (outer, first, second)] == ["outer", "first", "second"]
    assert (outer.parent, first.parent, second.parent) == (0, outer.event_id, outer.event_id)
    assert outer.self_ns == outer.duration_ns - first.duration_ns - second.duration_ns
    assert outer.scope is RecordScope.USER_SCOPE


def test_profiles_nest_and_overlap() -> None:
    outer = profile()
    inner = profile()
    with outer:
        with record_function("one"):
            pass
        inner.start()
        with record_function("two"):
            pass
    with record_function("three"):
        pass
    inner.stop()
    assert names(outer) == ["one", "two"]
    assert names(inner) == ["two", "three"]


@pytest.mark.parametrize("scopes", [{RecordScope.FUNCTION}, "function, BACKWARD_FUNCTION"])
def test_scopes_select(scopes: set[RecordScope] | str) -> None:
    with profile(scopes=scopes) as prof, record_function("user"):
        pass
    assert names(prof) == []


def test_a_running_profile_shows_what_has_ended() -> None:
    prof = profile()
    with prof, record_function("open"):
        with record_function("ended"):
            pass
        assert names(prof) == ["ended"]
        assert [one.key for one in prof.key_averages()] == ["ended"]
    assert names(prof) == ["open", "ended"]


def test_entered_again_it_begins_anew() -> None:
    prof = profile()
    for name in ("first", "second"):
        with prof, record_function(name):
            pass
        assert names(prof) == [name]


def test_starting_a_running_profile_is_refused() -> None:
    with profile() as prof, pytest.raises(RecfnError, match="stop it first"):
        prof.start()


@pytest.mark.parametrize(
    "wrong",
    [
        {"record_shapes": 1},
        {"max_events": 0},
        {"scopes": {42}},
        {"scopes": "NONE"},
        {"modules": None},
    ],
)
def test_wrong_settings_are_refused_by_name(wrong: dict[str, object]) -> None:
    with pytest.raises(SettingError, match="allowed"):
        profile(**wrong)  # type: ignore[arg-type]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_the_tree_has_a_path_for_each_place_and_the_same_times_as_the_averages() -> None:
    with profile() as prof:
        for _ in range(3):
            with record_function("step"), record_function("forward"), record_function("layer"):
                pass
            with record_function("layer"):
                pass
    tree = prof.tree()
    sample = prof.events()[0]
    assert {one.path: one.count for one in tree} == {
        ("step",): 3,
        ("step", "forward"): 3,
        ("step", "forward", "layer"): 3,
        ("layer",): 3,
    }
    assert sum(one.self_cpu_time_total for one in tree) == pytest.approx(
        prof.key_averages().self_cpu_time_total
    )
    assert prof.tree("thread")[0].path == (
        f"{threading.current_thread().name} {sample.thread.thread_id}",
    )
    longest = max([one for one in tree if len(one.path) == 1], key=lambda one: one.cpu_time_total)
    rows = [line for line in str(tree).splitlines()[3:] if not line.startswith("outside PyTorch")]
    assert rows[0].startswith(f"{longest.name} ")


def test_a_tree_of_modules_needs_modules() -> None:
    with profile(modules=False) as prof:
        pass
    with pytest.raises(SettingError, match="drop modules=False or with_modules=False"):
        prof.tree("module")
    assert len(prof.tree()) == 0
    assert "Name" in str(prof.tree())


def test_a_forked_child_has_its_own_events() -> None:
    program = """
import os
from otel_recfn import profile, record_function
with profile() as prof:
    with record_function("parent"): pass
    child = os.fork()
    with record_function("child" if child == 0 else "parent again"): pass
if child: os.waitpid(child, 0)
print([event.name for event in prof.events()], flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    assert sorted(done.stdout.splitlines()) == ["['child']", "['parent', 'parent again']"]


def test_a_program_may_exit_while_a_profile_runs() -> None:
    program = (
        "from otel_recfn import profile, record_function; p = profile(); p.start();"
        " record_function('x').__enter__()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    assert done.stderr == ""


def test_what_is_lost_is_told_by_the_profile_its_table_and_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with profile(max_events=10) as prof:
        for _ in range(30):
            with record_function("range"):
                pass
    assert prof.lost == {"event_store.dropped.store_full": 20}
    warning = "Lost, and not in these sums: event_store.dropped.store_full=20\n"
    assert prof.key_averages().table().endswith(warning)
    assert prof.key_averages()[:1].table().endswith(warning)
    expected = (
        "otel-recfn lost event_store.dropped.store_full=20: more ran than is kept; raise"
        " max_events, or record a shorter time"
    )
    assert expected in caplog.messages


STORE_FULL = "event_store.dropped.store_full=20"


@pytest.fixture(scope="module")
def full() -> profile:
    """A profile that has lost 20 ranges."""
    with profile(max_events=10) as prof:
        for _ in range(30):
            with record_function("range"):
                pass
    return prof


@pytest.mark.parametrize("by", ["name", "thread", "module"])
def test_each_tree_says_what_was_lost(full: profile, by: Any) -> None:
    tree = full.tree(by)
    said = f"Lost, and not in these sums: {STORE_FULL}"
    assert [text.splitlines()[-1] for text in (str(tree), tree.table(row_limit=0))] == [said, said]
    assert repr(tree).endswith(f"10 ranges; lost: {STORE_FULL}>")


@pytest.mark.parametrize("form", ["html", "md", "json"])
def test_each_report_says_what_was_lost(full: profile, tmp_path: Path, form: str) -> None:
    full.report(tmp_path / f"r.{form}")
    text = (tmp_path / f"r.{form}").read_text().replace("\\_", "_")
    assert f"Lost, and not in these pictures: {STORE_FULL}." in text


def test_a_profile_and_a_notebook_without_scripts_say_what_was_lost(full: profile) -> None:
    assert repr(full) == f"<profile of 10 events; lost: {STORE_FULL}; print() shows them>"
    assert str(full).splitlines()[-1] == f"Lost, and not in these sums: {STORE_FULL}"
    html = full._repr_html_()
    assert html is not None
    without_scripts, _, _ = html.partition("<iframe")
    assert f"<p>Lost, and not in these pictures: {STORE_FULL}.</p>" in without_scripts


@pytest.mark.parametrize("form", ["md", "json"])
def test_an_exported_trace_and_the_report_of_it_say_what_was_lost(
    full: profile, tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    path = tmp_path / "t.json.gz"
    full.export_chrome_trace(path)
    assert read_trace(path)["lost"] == 20
    assert main(["report", str(path), "--format", form]) == 0
    assert f"{path}: 20 events were lost as it was recorded." in capsys.readouterr().out.replace(
        "\\_", "_"
    )


def test_where_nothing_is_lost_nothing_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with profile() as prof, record_function("range"):
        pass
    assert prof.lost == {}
    assert "Lost" not in prof.key_averages().table()
    assert not caplog.messages


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
    with profile(
        schedule=cycle,
        on_trace_ready=lambda prof: ready.append([event.name for event in prof.events()]),
    ) as prof:
        train(prof, 9)
    assert ready == [
        ["ProfilerStep#2", "work 2", "ProfilerStep#3", "work 3"],
        ["ProfilerStep#6", "work 6", "ProfilerStep#7", "work 7"],
    ]
    assert prof.step_num == 9


@pytest.mark.parametrize("steps", [0, 3])
def test_a_schedule_that_never_recorded_is_said_to_wait(steps: int) -> None:
    with profile(schedule=lambda number: "RECORD" if number == 100 else "NONE") as prof:
        train(prof, steps)
    with pytest.raises(
        RecfnError, match=f"recorded no step: {steps} ended, and its schedule waits for 100; "
    ):
        prof.events()
    assert str(prof) == "<profile that recorded no step>"


def test_a_schedule_that_records_nothing_is_said_to_do_so() -> None:
    with profile(schedule=["NONE"].__getitem__) as prof:
        pass
    with pytest.raises(
        RecfnError, match="recorded no step: 0 ended, and its schedule records none; "
    ):
        prof.key_averages()


def test_what_is_recorded_at_the_end_is_handed_over_too() -> None:
    ready: list[int] = []
    with profile(
        schedule=cycle, on_trace_ready=lambda prof: ready.append(len(prof.events()))
    ) as prof:
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


def test_what_the_schedule_raises_is_the_programs_and_a_profile_can_begin_anew() -> None:
    wrong = {1}

    def schedule(number: int) -> str:
        if number in wrong:
            raise ValueError(f"no step {number}")
        return "RECORD"

    prof = profile(schedule=schedule)
    with pytest.raises(ValueError, match="no step 1"), prof:
        prof.step()
    wrong.clear()
    with prof, record_function("work"):
        pass
    assert names(prof) == ["ProfilerStep#0", "work"]
    wrong.add(0)
    with pytest.raises(ValueError, match="no step 0"), prof:
        pass


def test_without_a_schedule_a_step_is_no_range() -> None:
    with profile() as prof:
        with record_function("work"):
            pass
        prof.step()
    assert (names(prof), prof.step_num) == (["work"], 1)


def test_a_step_outside_of_a_run_is_refused() -> None:
    with pytest.raises(RecfnError, match="isn't running"):
        profile().step()


@pytest.mark.parametrize(
    ("name", "way_out"),
    [
        ("with_tack", r"did you mean with_stack\?"),
        ("execution_observer", "there are scopes, .*schedule, on_trace_ready"),
    ],
)
def test_what_it_does_not_take_is_said(name: str, way_out: str) -> None:
    with pytest.raises(SettingError, match=rf"profile\(\) has no {name}; {way_out}"):
        profile(**{name: None})


@pytest.mark.parametrize("path", [3, None, True, b"trace.json"])
@pytest.mark.parametrize("write", ["report", "export_chrome_trace", "export_stacks"])
def test_what_is_no_path_is_refused(write: str, path: Any) -> None:
    with profile(with_stack=True) as prof, record_function("work"):
        pass
    with pytest.raises(
        SettingError,
        match=r"^path=.* is not allowed; allowed: the path of a file, a str or a pathlib.Path$",
    ):
        getattr(prof, write)(path)


def test_what_is_no_number_of_lines_is_refused() -> None:
    with profile(with_stack=True) as prof, record_function("work"):
        pass
    with pytest.raises(
        SettingError, match=r"^group_by_stack_n='3' is not allowed; allowed: a whole number from -1"
    ):
        prof.key_averages(group_by_stack_n="3")  # type: ignore[arg-type]


OF_TORCH_PROFILER_ALONE = {
    "acc_events": True,
    "custom_trace_id_callback": str,
    "execution_trace_observer": object(),
    "experimental_config": object(),
    "use_cuda": True,
}


@pytest.mark.parametrize("name", OF_TORCH_PROFILER_ALONE)
def test_what_torch_profiler_alone_does_is_refused_with_the_way_out(name: str) -> None:
    with pytest.raises(
        SettingError,
        match=rf"{name}=.* is for torch\.profiler alone; leave it out, or use torch\.profiler",
    ):
        profile(**{name: OF_TORCH_PROFILER_ALONE[name]})


def test_what_torch_profiler_takes_by_default_changes_nothing() -> None:
    by_default = dict.fromkeys(OF_TORCH_PROFILER_ALONE) | {"acc_events": False, "use_cuda": False}
    with profile(**by_default) as prof, record_function("work"):
        pass
    assert [event.name for event in prof.events()] == ["work"]


def test_activities_of_a_gpu_are_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    with profile(activities=["CUDA", "XPU", "CPU"]) as prof, record_function("range"):
        pass
    assert [event.name for event in prof.events()] == ["range"]
    assert caplog.messages == [
        "profile() records the CPU alone, not CUDA, XPU; use torch.profiler beside it"
    ]


@pytest.mark.parametrize("wrong", ["CPU", 1])
def test_activities_are_a_list(wrong: Any) -> None:
    with pytest.raises(SettingError, match="a list of one or more of torch"):
        profile(activities=wrong)


def test_stacks_for_flame_graphs(tmp_path: Path) -> None:
    with profile(with_stack=True) as prof, record_function("outer"):
        sum(range(200_000))
    prof.export_stacks(tmp_path / "stacks.txt")
    assert stat.S_IMODE((tmp_path / "stacks.txt").stat().st_mode) == 0o600
    [line] = (tmp_path / "stacks.txt").read_text().splitlines()
    stack, _, us = line.rpartition(" ")
    assert " " not in stack
    assert "test_stacks_for_flame_graphs" in stack.split(";")[-1]
    assert int(us) > 0
    with pytest.raises(SettingError, match="with_stack=True"):
        profile().export_stacks(tmp_path / "none.txt")
    with pytest.raises(SettingError, match="with_stack=True"):
        profile().key_averages(group_by_stack_n=1)


def test_stacks_by_a_metric_of_a_device_are_none(tmp_path: Path) -> None:
    with profile(with_stack=True) as prof, record_function("outer"):
        sum(range(200_000))
    for device in ("cuda", "xpu", "privateuse1"):
        prof.export_stacks(tmp_path / device, f"self_{device}_time_total")
        assert (tmp_path / device).read_text() == ""
    allowed = (
        "self_cpu_time_total, self_cuda_time_total, self_xpu_time_total,"
        " self_privateuse1_time_total"
    )
    with pytest.raises(ValueError, match=f"^metric='cpu_time' is not allowed; allowed: {allowed}$"):
        prof.export_stacks(tmp_path / "none", "cpu_time")


@pytest.mark.parametrize("suffix", ["html", "md", "json"])
def test_a_new_report_is_for_its_user_alone(tmp_path: Path, suffix: str) -> None:
    with profile() as prof, record_function("work"):
        pass
    prof.report(tmp_path / f"report.{suffix}")
    assert stat.S_IMODE((tmp_path / f"report.{suffix}").stat().st_mode) == 0o600


def test_rows_of_averages_know_the_first_range_and_add_up() -> None:
    with profile() as prof, record_function("outer"):
        for _ in range(2):
            with record_function("inner"):
                pass
    outer, inner = prof.key_averages()
    assert (outer.cpu_parent, [child.name for child in outer.cpu_children]) == (
        None,
        ["inner", "inner"],
    )
    assert inner.cpu_parent.name == "outer"
    assert (outer.is_user_annotation, outer.scope, outer.event_id) == (
        True,
        RecordScope.USER_SCOPE,
        prof.events()[0].event_id,
    )
    whole = inner.cpu_time_total
    [_, again] = prof.key_averages()
    assert inner.add(again) is inner
    inner += again
    assert (inner.count, inner.cpu_time_total, inner.cpu_time) == (
        6,
        pytest.approx(3 * whole),
        pytest.approx(whole / 2),
    )
    with pytest.raises(
        ValueError, match=r"^the sums of 'outer' can't be added to those of 'inner'"
    ):
        inner.add(outer)


def test_events_can_be_put_into_each_other_as_torchs() -> None:
    with profile() as prof, record_function("first"), record_function("inside"):
        pass
    with profile() as other, record_function("second"):
        pass
    first, inside = prof.events()
    [second] = other.events()
    before = first.self_cpu_time_total
    known = {first: "first", second: "second"}
    first.append_cpu_child(second)
    second.set_cpu_parent(first)
    first.append_kernel("kernel", 0, 2.5)
    assert (first.cpu_children, second.cpu_parent) == ([inside, second], first)
    assert first.self_cpu_time_total == pytest.approx(before - second.cpu_time_total)
    assert (first.kernels, inside.kernels) == ([("kernel", 0, 2.5)], [])
    assert [known[first], known[second]] == ["first", "second"]


def test_in_a_program_without_torch_events_have_no_device_type() -> None:
    program = """if True:
        from otel_recfn import profile, record_function
        with profile() as prof, record_function("work"):
            pass
        [event], [row] = prof.events(), prof.key_averages()
        assert event.device_type is row.device_type is None
        assert (event.activity_type, event.device_time_str) == ("user_annotation", "0.000us")
    """
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S)


def test_events_can_be_members_of_a_set() -> None:
    with profile() as prof, record_function("first"), record_function("second"):
        pass
    assert len({*prof.events(), *prof.events()}) == 2


def test_a_notebook_and_a_terminal_show_it() -> None:
    with profile() as prof, record_function("outer"), record_function("inner <b>"):
        pass
    for shown in (
        prof._repr_html_(),
        prof.key_averages()._repr_html_(),
        prof.key_averages()[:1]._repr_html_(),
    ):
        assert shown is not None
        assert "<iframe sandbox='allow-scripts'" in shown
        assert ">outer</td>" in shown
    assert [line.partition(" 1  ")[2] for line in str(prof).splitlines()[-2:]] == [
        "outer",
        "  inner <b>",
    ]
    assert repr(prof) == "<profile of 2 events; print() shows them>"


def test_what_has_nothing_to_show_shows_that() -> None:
    assert repr(profile()) == str(profile()) == "<profile that has not begun>"
    assert profile()._repr_html_() is None
    with profile() as prof:
        pass
    assert str(prof) == "Nothing was recorded."
    assert prof._repr_html_() is None
    assert prof.findings() == []


def test_the_wall_time_and_the_time_outside_of_ranges_are_said() -> None:
    with profile() as prof:
        with record_function("range"):
            pass
        moment = time.perf_counter_ns()
        while time.perf_counter_ns() == moment:  # some time passes that no range has
            pass
    name = threading.current_thread().name
    wall, thread_line, *_ = str(prof).splitlines()
    assert wall.startswith("Wall time: ")
    assert re.fullmatch(rf"{name}: .+% recorded, .+% \(.+\) outside PyTorch\.", thread_line)
    assert prof.key_averages().table().splitlines()[-2:] == [wall, thread_line]
    for text in (str(prof), str(prof.tree()), str(prof.tree("thread")), str(prof.tree("module"))):
        assert "outside PyTorch" in text
    assert [one.path for one in prof.tree()] == [("range",)]


def test_a_profile_that_runs_says_the_time_up_to_now() -> None:
    with profile() as prof:
        with record_function("range"):
            pass
        assert str(prof).startswith("Wall time: ")


def test_the_block_is_the_threads_that_began_it() -> None:
    with profile() as prof:
        works = threading.Thread(target=record_function("range")(lambda: None))
        works.start()
        works.join()
    assert f"{threading.current_thread().name}: 0.0% recorded, 100.0%" in str(prof)
