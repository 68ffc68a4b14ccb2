"""The report as Markdown, as JSON, in words, in a terminal, and in a notebook that runs no
scripts.
"""

from __future__ import annotations

import html
import io
import json
import re
import sys

import pytest
from recorded_ranges import Ran, process

from helpers.batches import make_batch
from otel_recfn.batches.averages import key_averages
from otel_recfn.batches.build_tree import build_tree
from otel_recfn.model.events import EventFlag, EventSource
from otel_recfn.report.page import ROWS_WITHOUT_SCRIPTS
from otel_recfn.report.process import Process
from otel_recfn.report.recording import Recording
from otel_recfn.report.report import Report
from otel_recfn.report.sentences import describe_time
from otel_recfn.report.terminal import tree_with_bars

NASTY = "a|b `c` <img src=x onerror=alert(1)>\n# *d*"


def trained() -> Process:
    linear = Ran("aten::linear", 29_000, (Ran("aten::addmm", 28_000),))
    forward = Ran("nn.Module: Net", 30_000, (linear,), {"source": EventSource.MODULE})
    backward = Ran(
        "autograd::engine::evaluate_function: AddmmBackward0", 50_000, (Ran("aten::mm", 40_000),)
    )
    inside = (forward, backward, Ran("Optimizer.step#SGD.step", 15_000))
    step = Ran("train", 100_000, inside, {"source": EventSource.STEP, "cpu_time_ns": 90_000_000})
    return process(
        Ran("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 300), step, label="here"
    )


def test_what_took_the_time_is_said_in_words() -> None:
    assert describe_time(Recording([trained()])) == [
        "Backward passes took 50% of the time, 50 ms: aten::mm itself 40 ms of it.",
        "Calls of modules took 30% of the time, 30 ms: aten::addmm itself 28 ms of it.",
        "Optimizers took 15% of the time, 15 ms.",
        "Code outside PyTorch took 5% of the time, 5 ms: Python between operators, files, or"
        " waiting.",
        "The rest took 0% of the time, 300 us: loading data.",
    ]


def test_a_range_of_the_programs_own_is_no_code_outside() -> None:
    load = Ran("load", 60_000, (), {"source": EventSource.RECORD_FUNCTION, "scope": 7})
    seen = Recording([process(load, Ran("aten::mm", 20_000), pause_us=20_000)])
    assert describe_time(seen) == [
        "Your own ranges took 60% of the time, 60 ms.",
        "Other operators took 20% of the time, 20 ms.",
        "Code outside PyTorch took 20% of the time, 20 ms: Python between operators, files, or"
        " waiting.",
    ]


def test_each_range_does_its_own_work_among_those_of_its_name() -> None:
    """A step does none, a block or an operator of its name on the same path does."""
    block = {"source": EventSource.RECORD_FUNCTION, "scope": 7}
    ran = [
        Ran("plain", 20_000, (Ran("aten::mm", 10_000),), {"source": EventSource.STEP}),
        Ran("plain", 50_000, (Ran("aten::mm", 20_000, (), block),), block),
        Ran("plain", 30_000),
    ]
    for ordered in (ran, ran[::-1]):
        assert describe_time(Recording([process(*ordered)])) == [
            "Your own ranges took 50% of the time, 50 ms: plain itself 30 ms of it.",
            "Other operators took 40% of the time, 40 ms: plain itself 30 ms of it.",
            "Code outside PyTorch took 10% of the time, 10 ms: Python between operators, files, or"
            " waiting.",
        ]


def test_the_wall_time_contains_what_overlaps_others() -> None:
    columns = {"source": EventSource.STEP, "flags": EventFlag.ASYNC, "step_number": 3}
    serving = Ran("serve", 90_000, (), columns)
    recorded = process(serving, Ran("aten::mm", 20_000), serving)
    (wall,) = json.loads(Report([recorded]).text("json"))["wall"]
    assert wall["wall_us"] == 200_000
    assert [step["wall_us"] for step in wall["threads"][0]["steps"]] == [90_000, 90_000]


def test_what_an_optimizers_closure_calls_is_no_work_of_the_optimizer() -> None:
    forward = Ran(
        "nn.Module: Net", 30_000, (Ran("aten::addmm", 28_000),), {"source": EventSource.MODULE}
    )
    backward = Ran("autograd::engine::evaluate_function: AddmmBackward0", 50_000)
    step = Ran(
        "Optimizer.step#LBFGS.step",
        100_000,
        (Ran("batch", 30_000, (forward,)), backward, Ran("aten::add_", 10_000)),
    )
    assert [
        text.partition(" of the time")[0] for text in describe_time(Recording([process(step)]))
    ] == [
        "Backward passes took 50%",
        "Calls of modules took 30%",
        "Optimizers took 20%",
    ]


def test_python_that_is_recorded_is_no_rest() -> None:
    inner = Ran(
        "app.py(9): inner", 60_000, (Ran("aten::mm", 20_000),), {"source": EventSource.PYTHON_CALL}
    )
    outer = Ran("app.py(1): outer", 100_000, (inner,), {"source": EventSource.PYTHON_CALL})
    assert describe_time(Recording([process(outer)])) == [
        "Python functions took 80% of the time, 80 ms: app.py(1): outer itself 40 ms of it.",
        "Other operators took 20% of the time, 20 ms.",
    ]


def test_the_rest_says_python_as_it_is_written() -> None:
    short = Ran("app.py(1): outer", 500, (), {"source": EventSource.PYTHON_CALL})
    *_, rest = describe_time(Recording([process(Ran("aten::mm", 99_000), short)]))
    assert rest.endswith(": Python functions.")


def test_shares_are_of_the_wall_time_however_long_a_pause_is() -> None:
    ran = [Ran("aten::mm", 1_000)] * 2
    (outside, operators) = describe_time(Recording([process(*ran, pause_us=98_000)]))
    assert outside.startswith("Code outside PyTorch took 98% of the time, 98 ms: ")
    assert operators == "Other operators took 2% of the time, 2 ms."
    text = Report([process(*ran, pause_us=98_000)]).text("md")
    assert "- Wall time: 100.000ms." in text
    assert "- MainThread: 2.0% recorded, 98.0% (98.000ms) outside PyTorch." in text


def test_a_service_that_waits_for_requests_has_findings() -> None:
    request = Ran("request", 100_000, (Ran("aten::to", 80_000),))
    (finding,) = Report([process(*[request] * 5, pause_us=3_900_000)]).findings
    assert finding.serious
    assert finding.share == pytest.approx(5 * 0.08 / 16.1, abs=0.001)


def test_each_step_says_what_was_outside() -> None:
    step = {"source": EventSource.STEP}
    ran = [
        Ran(
            "train",
            10_000,
            (Ran("aten::mm", (number + 1) * 2_000),),
            {**step, "step_number": number},
        )
        for number in range(3)
    ]
    report = Report([process(*ran)])
    (wall,) = json.loads(report.text("json"))["wall"]
    assert wall["wall_us"] == 30_000
    (thread,) = wall["threads"]
    assert (thread["thread"], thread["recorded_us"]) == ("MainThread", 12_000)
    assert [(each["step"], each["outside_us"]) for each in thread["steps"]] == [
        ("train#0", 8_000),
        ("train#1", 6_000),
        ("train#2", 4_000),
    ]
    text = report.text("md")
    assert "| `train#1` | `MainThread` | 10.000ms | 6.000ms | 60.00% |" in text
    assert "6.000ms of it outside PyTorch; most in train#0, 8.000ms of 10.000ms. 0.000us" in text


def test_several_processes_are_summed_up() -> None:
    alone = describe_time(Recording([trained()]))
    twice = describe_time(Recording([trained(), trained()]))
    assert [text.partition(",")[0] for text in alone] == [text.partition(",")[0] for text in twice]
    assert "100 ms" in twice[0]


def test_markdown_shows_names_as_they_are() -> None:
    batch = process(Ran(NASTY, 90_000, (Ran("aten::to", 80_000),)))
    text = Report([batch], NASTY).text("md")
    assert "1. **Copies and casts, 89% of the time (serious).** 1 copies" in text
    outside = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "", text)
    assert not re.search(r"(?<!\\)[<`]", outside)
    rows = [line for line in text.splitlines() if line.startswith("| ") and "Name" not in line]
    assert [len(re.findall(r"(?<!\\)\|", row)) for row in rows] == [6, 6]


def test_markdown_says_where_nothing_stands_out() -> None:
    assert "Nothing stands out." in Report([process(Ran("aten::mm", 100))]).text("md")


def test_json_has_the_same() -> None:
    data = json.loads(Report([trained()]).text("json"))
    assert data["processes"] == ["here"]
    times = {"total_us": 40_000.0, "self_us": 40_000.0, "self_share": pytest.approx(40 / 100.3)}
    assert data["by_name"][0] == {"name": "aten::mm", "count": 1, **times}
    assert sum(row["self_us"] for row in data["by_name"]) == 100_300
    assert data["wall"][0]["wall_us"] == 100_300
    assert data["what_took_the_time"] == describe_time(Recording([trained()]))


@pytest.mark.parametrize(("encoding", "block"), [("utf-8", "█"), ("ascii", "#")])
def test_a_bar_is_as_long_as_the_share(
    encoding: str, block: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding))
    whole, half = tree_with_bars(
        build_tree(process(Ran("a", 1000, (Ran("b", 500),))).batch), [], {}
    ).splitlines()
    assert (whole.count(block), half.count(block)) == (10, 5)


def test_the_tree_has_the_widths_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    batch = process(Ran("x" * 300, 10_000, (Ran("y" * 300 + " the end", 9000),))).batch
    first, second = tree_with_bars(build_tree(batch), [], {}).splitlines()
    assert len(first) == len(second) == 80
    assert second.endswith("y the end")


def test_the_tree_says_what_it_leaves_out_and_what_was_lost() -> None:
    many = process(Ran("all", 1000, tuple(Ran(f"part {number}", 10) for number in range(60)))).batch
    *_, hidden, lost = tree_with_bars(build_tree(many), [], {"dropped": 3}).splitlines()
    assert hidden.startswith("21 more paths are not shown")
    assert lost == "Lost, and not in these sums: dropped=3"
    assert tree_with_bars(build_tree(make_batch([])), [], {}) == "Nothing was recorded."


def test_no_name_steers_the_terminal_in_trees_and_tables() -> None:
    batch = process(Ran("\x1b[31mred\u202e \xa0\u3000", 1000)).batch
    for text in (
        tree_with_bars(build_tree(batch), [], {}),
        build_tree(batch).table(),
        key_averages(batch).table(),
    ):
        assert "\\x1b[31mred\\u202e \xa0\u3000" in text


def test_a_notebook_that_takes_out_frames_and_styles_shows_a_table() -> None:
    recorded = process(*[Ran(f"{NASTY} it's {number}", 1000) for number in range(40)])
    shown = Report([recorded]).in_notebook()
    (frame,) = re.findall(r"<iframe [^>]*srcdoc='([^']*)'></iframe>", shown)
    assert html.unescape(frame).startswith("<!doctype html>")
    rest = re.sub(r"<iframe.*?</iframe>|<style>.*?</style>", "", shown, flags=re.DOTALL)
    assert rest.count("<tr>") == 1 + ROWS_WITHOUT_SCRIPTS
    assert "<img" not in rest
    assert "10 more names are not shown." in rest


def test_a_notebook_keeps_a_few_hundred_kilobytes() -> None:
    names = [
        f"an operation with quite a long name, of which there are many: {number}"
        for number in range(20_000)
    ]
    recorded = process(*[Ran(name, 1000, (Ran(name, 900),)) for name in names])
    assert len(Report([recorded]).in_notebook()) < 300_000
