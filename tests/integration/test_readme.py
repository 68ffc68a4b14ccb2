"""The blocks of README.md and of the pages in docs/, as a newcomer runs them."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.otlp_server import OtlpServer
from helpers.timeouts import PATIENCE_S
from helpers.trace_files import events_in
from otel_recfn.pytorch import observer_build

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
AROUND = """
import json, logging, sys
logging.basicConfig(stream=sys.stdout, level=logging.WARNING)
import torch
from otel_recfn import InMemorySink, OtelRecordFunctionInstrumentor, profile
instrumentor = OtelRecordFunctionInstrumentor()
model = torch.nn.TransformerEncoderLayer(16, 2, batch_first=True)
batch = torch.ones(2, 5, 16)
def load(): return batch
def handle(request): return json.dumps(request)
request = {}
"""


def blocks(page: str, language: str = "python") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


PAGES = {
    path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))
}
FIRST, *OTHERS = blocks(README)
# Whose examples need files that its commands write, or the servers of test_batching.py.
ALONE = {page: text for page, text in PAGES.items() if page not in ("codegen", "batching")}
EXAMPLES = [pytest.param(block, id=page) for page, text in ALONE.items() for block in blocks(text)]
EXAMPLES += [pytest.param(block, id=f"readme{number}") for number, block in enumerate(OTHERS, 2)]

pytestmark = pytest.mark.torch


@pytest.fixture
def collector() -> Iterator[str]:
    """The endpoint of one that takes spans."""
    with OtlpServer("grpc") as server:
        yield f"http://localhost:{server.port}"


def test_the_readmes_program_runs_as_pasted_and_prints_what_it_says(
    run_program: Callable[..., Any],
) -> None:
    assert len([line for line in FIRST.splitlines() if line]) <= 10
    done = run_program(FIRST)
    said = re.search(r"^prints a tree of (.*?), \.\.\.", README, re.MULTILINE | re.DOTALL)
    assert said
    printed = {line.strip().split("  ")[0] for line in done.stdout.splitlines()}
    assert set(re.findall(r"`(.*?)`", said[1])) <= printed
    assert done.stderr == ""


def test_the_console_exporter_prints_spans_as_the_readme_says(
    run_by: Callable[..., Any], tmp_path: Path
) -> None:
    if importlib.util.find_spec("opentelemetry.distro") is None:
        pytest.skip("opentelemetry-distro is not installed: pip install '.[examples]'")
    [command] = re.findall(r"`(OTEL_TRACES_EXPORTER=\S+ \S+ python) \S+\.py` prints spans", README)
    variable, by, _ = command.split()
    run = run_by(tmp_path, str(Path(sys.executable).with_name(by)), sys.executable)
    others = {"OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}
    output = run(FIRST, **others, **dict([variable.split("=")])).stdout
    assert '"name": "module call: Sequential"' in output


def test_the_pages_have_examples() -> None:
    assert len(OTHERS) >= 4
    assert len(EXAMPLES) >= 12


@pytest.mark.parametrize("block", EXAMPLES)
def test_an_example_runs_without_a_warning(
    run_with_torch: Callable[..., Any], collector: str, block: str
) -> None:
    every_range = block.replace("sampling_prob(0.01)", "sampling_prob(1.0)")
    done = run_with_torch(AROUND + every_range, OTEL_EXPORTER_OTLP_ENDPOINT=collector)
    assert "WARNING" not in done.stdout
    if every_range != block:
        assert "aten::addmm [torch.Size" in done.stdout


def test_the_readmes_ranks_write_a_file_each(tmp_path: Path) -> None:
    [command] = [block for block in blocks(README, "sh") if block.startswith("torchrun")]
    [training] = [block for block in OTHERS if "step(" in block]
    (tmp_path / "train.py").write_text(AROUND + training)
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("OTEL_") or name == "OTEL_RECFN_CACHE_DIR"
    }
    launched = [sys.executable, "-m", "torch.distributed.run", *shlex.split(command)[1:]]
    done = subprocess.run(
        launched,
        cwd=tmp_path,
        env=kept,
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    written = sorted(tmp_path.glob("trace*"))
    assert [path.name for path in written] == ["trace.rank0.json.gz", "trace.rank1.json.gz"]
    runs = [
        event["args"]["run"]
        for path in written
        for event in events_in(path, "M")
        if event["name"] == "process_name"
    ]
    assert len(runs) == 2
    assert len({*runs}) == 1


def test_the_readmes_build_leaves_an_observer_in_the_directory_that_it_names(
    tmp_path: Path,
) -> None:
    """By a compiler that takes no time: it gives what another has compiled."""
    compiler = tmp_path / "compiler"
    compiled = observer_build.build(observer_build.TORCH_OBSERVER)
    compiler.write_text(
        f'#!/bin/sh\nuntil [ "$1" = -o ]; do shift; done\ncp {shlex.quote(str(compiled))} "$2"\n'
    )
    compiler.chmod(0o700)
    [command] = [
        block for block in blocks(README, "sh") if block.startswith("OTEL_RECFN_CACHE_DIR=")
    ]
    in_here = command.replace("/opt/otel-recfn", str(tmp_path / "cache")).replace(
        "otel-recfn build", f"{sys.executable} -m otel_recfn.cli build"
    )
    environment = os.environ | {"CXX": str(compiler)}
    done = subprocess.run(
        in_here,
        shell=True,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "cache").glob("*.so"))


def test_the_page_of_generated_wrappers_holds_from_its_schemas_to_its_graph(tmp_path: Path) -> None:
    page = PAGES["codegen"]
    [schemas], [command], [graphs] = blocks(page, "yaml"), blocks(page, "sh"), blocks(page)
    (tmp_path / "operators.yaml").write_text(schemas)
    kernels = tmp_path / "src" / "mylib" / "kernels.py"
    kernels.parent.mkdir(parents=True)
    kernels.write_text("from torch import add\n")
    generate = [sys.executable, "-m", "otel_recfn.cli", *shlex.split(command)[1:]]
    for line in (generate, [*generate, "--check"], [sys.executable, "-c", AROUND + graphs]):
        environment = os.environ | {"PYTHONPATH": str(tmp_path / "src")}
        done = subprocess.run(
            line,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
