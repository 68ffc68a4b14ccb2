"""Each benchmark works: at its smallest size it ends with code 0 and prints its table.

With ``--tiny`` each does its parts once. Its numbers mean nothing then, so nothing is asserted of
them. They run where PyTorch is imported already, and share what they compile: both take longer than
everything else.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

FOLDER = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = [*sorted(FOLDER.glob("bench_*.py")), FOLDER / "otlp_throughput.py", FOLDER / "quick.py"]


def program(script: Path) -> str:
    """A benchmark as the program of a process that has imported PyTorch."""
    return (
        f"import runpy, sys\nsys.path.insert(0, {str(script.parent)!r})\n"
        f"runpy.run_path({str(script)!r}, run_name='__main__')\n"
    )


@pytest.fixture(scope="module")
def compiled_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the code that benchmarks compile to compare with."""
    return tmp_path_factory.mktemp("compiled")


@pytest.mark.parametrize("script", SCRIPTS, ids=[script.stem for script in SCRIPTS])
def test_a_benchmark_prints_its_table(
    script: Path,
    run_with_torch: Callable[..., subprocess.CompletedProcess[str]],
    compiled_code: Path,
) -> None:
    done = run_with_torch(
        program(script), "--tiny", BENCH_FOLDER=str(compiled_code), OTEL_RECFN_OUTSIDE="true"
    )
    assert re.search(r"^.+ \S*\d", done.stdout, re.MULTILINE), "no line has a name and a number"
