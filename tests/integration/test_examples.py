"""The examples do what they say: run as a user runs them, in a process of their own, with few
steps.

Those that import PyTorch before ours are run where it is imported already.
"""

from __future__ import annotations

import gzip
import importlib
import importlib.util
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from helpers.jaeger_upload import uploaded

pytestmark = pytest.mark.torch

EXAMPLES = Path(__file__).parents[2] / "examples"
FEW_STEPS = ("--steps", "4", "--epoch-steps", "2", "--layers", "1")
EVERY_OPERATOR = {"OTEL_RECFN_DETAIL": "all"}
"""Which operators are spans at "normal" depends on how long each takes: on a busy machine the ones
that are looked for may be too short beside another one.
"""


def losses(output: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", output)]


def ancestors(span: dict[str, Any], by_id: dict[str, dict[str, Any]]) -> list[str]:
    """The names above a span; a parent that is missing is a KeyError."""
    names = []
    while "parentSpanId" in span:
        span = by_id[span["parentSpanId"]]
        names.append(span["name"])
    return names


def program_of(name: str) -> str:
    """An example as the program of a process."""
    where = str(EXAMPLES)
    script = str(EXAMPLES / name)
    return (
        f"import runpy, sys\nsys.path.insert(0, {where!r})\nrunpy.run_path({script!r},"
        " run_name='__main__')\n"
    )


@pytest.fixture
def run_example(
    run_with_dynamo: Callable[..., subprocess.CompletedProcess[str]],
) -> Callable[..., str]:
    """Runs one where PyTorch is imported already, with what its optimizer wants of it; gives
    what it prints.
    """
    return lambda name, *arguments: (
        run_with_dynamo(program_of(name), *arguments, **EVERY_OPERATOR).stdout
    )


@pytest.fixture
def train(run_example: Callable[..., str]) -> Callable[..., str]:
    return partial(run_example, "train.py", *FEW_STEPS)


@pytest.fixture
def nothing_listens() -> None:
    """The examples write files only where no collector is."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        from telemetry import OTLP_PORT, something_listens
    finally:
        sys.path.pop(0)
    if something_listens(OTLP_PORT):
        pytest.skip("a collector listens on this machine: the examples export to it")


def test_train_runs_plain_and_learns(train: Callable[..., str]) -> None:
    found = losses(train("--steps", "16"))
    assert len(found) == 8
    assert found[-1] < found[0]


@pytest.mark.usefixtures("nothing_listens")
def test_the_demo_shows_a_step_and_writes_both_files(
    run_example: Callable[..., str], tmp_path: Path
) -> None:
    output = run_example("demo.py", *FEW_STEPS)
    assert "One 'step' span" in output
    assert re.search(r"└─ .*aten::|├─ .*aten::", output)
    assert "ui.perfetto.dev" in output
    assert "A picture of it, in any browser: demo-out/report.html" in output
    assert re.fullmatch(r"    .* took \d+% of the time, .*\.", output.splitlines()[-1])
    assert (
        (tmp_path / "demo-out" / "report.html")
        .read_text(encoding="utf-8")
        .startswith("<!doctype html>")
    )
    file = tmp_path / "demo-out" / "spans.jsonl"
    check_spans(uploaded(file))
    with gzip.open(tmp_path / "demo-out" / "trace.json.gz", "rt", encoding="utf-8") as file:
        trace = json.load(file)
    names = Counter(event["name"] for event in trace["traceEvents"] if event.get("ph") == "X")
    assert names["aten::addmm"] >= 4
    assert any(name.startswith("nn.Module: LanguageModel") for name in names)


def check_spans(spans: list[dict[str, Any]]) -> None:
    """Every operator of the loop stands below its step, every step in its epoch, and no parent
    is missing.
    """
    by_id = {span["spanId"]: span for span in spans}
    assert len(by_id) == len(spans)
    assert Counter(span["name"] for span in spans if span["name"] in ("epoch", "step")) == {
        "epoch": 2,
        "step": 4,
    }
    multiplications = [
        ancestors(span, by_id) for span in spans if span["name"].startswith("aten::addmm")
    ]
    trained = [names for names in multiplications if names[-1] == "epoch"]
    assert all(names[-2:] == ["step", "epoch"] for names in trained)
    assert any("LanguageModel" in names for names in trained)
    assert len(trained) >= 4
    assert any(names[-1] == "write" for names in multiplications)
    assert any("Optimizer.step#AdamW.step" in span["name"] for span in spans)


def test_the_demo_shows_what_was_lost(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    demo = importlib.import_module("demo")
    demo.print_losses({"recorded": 7, "exported": 7, "failed": 0, "dropped.error": 0})
    assert capsys.readouterr().out == ""
    demo.print_losses({"recorded": 7, "exported": 0, "failed": 7, "dropped.error": 0})
    assert capsys.readouterr().out.split()[-6:] == ["recorded", "7", "exported", "0", "failed", "7"]


@pytest.mark.usefixtures("nothing_listens")
def test_operators_stand_below_the_request_that_caused_them(
    run_example: Callable[..., str], tmp_path: Path
) -> None:
    pytest.importorskip("uvicorn")
    pytest.importorskip("opentelemetry.instrumentation.fastapi")
    output = run_example("serve.py", "--once", "--train-steps", "2")
    assert 'answer: {"text":"the owl' in output
    assert "One 'GET /write' span" in output
    spans = uploaded(tmp_path / "demo-out" / "serve-spans.jsonl")
    by_id = {span["spanId"]: span for span in spans}
    above = [ancestors(span, by_id) for span in spans if span["name"].startswith("aten::addmm")]
    assert above
    assert all(names[-1] == "GET /write" for names in above)


def test_opentelemetry_instrument_observes_the_training(
    run_by: Callable[..., Any], tmp_path: Path
) -> None:
    if importlib.util.find_spec("opentelemetry.distro") is None:
        pytest.skip("opentelemetry-distro is not installed: pip install '.[examples]'")
    run = run_by(
        tmp_path, str(Path(sys.executable).with_name("opentelemetry-instrument")), sys.executable
    )
    exporters = {
        "OTEL_TRACES_EXPORTER": "console",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_LOGS_EXPORTER": "none",
        **EVERY_OPERATOR,
    }
    output = run(
        program_of("train.py"), *FEW_STEPS, "--steps", "2", "--workers", "0", **exporters
    ).stdout
    names = Counter(re.findall(r'^    "name": "(.*)",$', output, flags=re.MULTILINE))
    assert names["step"] == 2
    assert names["aten::addmm"] >= 2
    assert len(losses(output)) == 1


def test_arrays_as_spans_chrome_trace_and_graph(
    run_program: Callable[..., Any], tmp_path: Path
) -> None:
    said = run_program(program_of("arrays.py"), "trace.json").stdout
    operators = Counter(re.findall(r"= arrays::(\w+)\(", said))
    assert len(operators) == 10
    assert f"{operators.total()} operators as spans" in said
    events = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    assert Counter(
        event["name"] for event in events if event["name"].startswith("arrays::")
    ) == Counter({f"arrays::{name}": times for name, times in operators.items()})


def test_the_wrappers_of_arrays_are_current(monkeypatch: pytest.MonkeyPatch) -> None:
    from otel_recfn.cli import main

    monkeypatch.chdir(EXAMPLES / "array_operators")
    options = [
        "--schema",
        "operators.yaml",
        "--dispatch",
        "array_operators.kernels",
        "--out",
        "wrappers",
    ]
    assert main(["codegen", *options, "--check"]) == 0
