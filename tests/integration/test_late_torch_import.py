"""The observer in processes of their own: torch imported after ours, a compiler that fails, and
none.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_recfn.pytorch import observer_build

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]
PRELUDE = """
import logging, sys
logging.basicConfig(format="%(levelname)s %(message)s", stream=sys.stdout, level=logging.INFO)
from otel_recfn.model.events import ALL_SCOPES_MASK
from otel_recfn.recording.recorder import recorder
from otel_recfn.pytorch.late_import import call_at_torch_import
from otel_recfn.pytorch.modules import ModuleRanges
from otel_recfn.pytorch.observer import TorchObserver
from otel_recfn.sources.protocol import Wanted
observer = TorchObserver()
modules = ModuleRanges()
recorder.start(ALL_SCOPES_MASK, 1 << 20)
def attach():
    observer.enable(Wanted())
    modules.enable(Wanted())
def names():
    events = sorted(recorder.drain().events(), key=lambda event: event.event_id)
    return [event.name for event in events]
"""
USE = """
names()
torch.nn.ReLU()(torch.ones(2))
seen = names()
assert "nn.Module: ReLU_0" in seen and "aten::relu" in seen, seen
"""
Run = Callable[..., str]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A directory with the observer that was compiled for this test run."""
    directory = tmp_path / "cache"
    directory.mkdir(mode=0o700)
    shutil.copy2(observer_build.build(observer_build.TORCH_OBSERVER), directory)
    return directory


@pytest.fixture
def run(cache: Path, run_program: Callable[..., Any]) -> Run:
    """Runs a program that has not imported torch when it has imported ours."""

    def run(program: str, **environment: str) -> str:
        imported = f"{PRELUDE}assert 'torch' not in sys.modules\n{program}"
        said: str = run_program(
            imported, **{"OTEL_RECFN_CACHE_DIR": str(cache)} | environment
        ).stdout
        return said

    return run


@pytest.fixture
def run_with(cache: Path, run_with_torch: Callable[..., Any]) -> Run:
    """Runs a program that has imported torch before it imports ours."""

    def run(program: str, **environment: str) -> str:
        said: str = run_with_torch(
            f"import torch\n{PRELUDE}{program}",
            **{"OTEL_RECFN_CACHE_DIR": str(cache)} | environment,
        ).stdout
        return said

    return run


def test_torch_imported_after(run: Run) -> None:
    run(f"call_at_torch_import(attach); import torch{USE}")


FAILING = """#!/bin/sh
echo run >> {runs}
echo "ld: cannot find -lc10" >&2
exit 1
"""


def test_a_build_that_fails_is_tried_and_told_once_in_a_process(
    run_with: Run, tmp_path: Path
) -> None:
    tmp_path.chmod(0o700)
    (script := tmp_path / "compiler").write_text(FAILING.format(runs=tmp_path / "runs"))
    script.chmod(0o700)
    program = """
from otel_recfn import OtelRecordFunctionInstrumentor, profile
for _ in range(3):
    with profile():
        torch.nn.ReLU()(torch.ones(2))
    OtelRecordFunctionInstrumentor().instrument(chrome_trace="trace.json")
    OtelRecordFunctionInstrumentor().uninstrument()
"""
    for processes in (1, 2):
        output = run_with(program, OTEL_RECFN_CACHE_DIR=str(tmp_path), CXX=str(script))
        assert (
            output.count(
                "PyTorch operators are not observed, everything else is: compiling torch_observer"
            )
            == 1
        )
        assert output.count("WARNING building torch_observer") == 1
        assert len((tmp_path / "runs").read_text().splitlines()) == processes * len(
            observer_build.STANDARDS
        )


def test_without_a_compiler_the_rest_works(run_with: Run, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    output = run_with(
        """
import torch
attach(); observer.disable(); attach()
torch.nn.ReLU()(torch.ones(2))
assert names() == ["nn.Module: ReLU_0"]
assert not observer.enabled
""",
        OTEL_RECFN_CACHE_DIR=str(tmp_path),
        PATH="",
        CXX="",
    )
    assert (
        output.count(
            "WARNING PyTorch operators are not observed, everything else is: no C++ compiler found"
        )
        == 1
    )
