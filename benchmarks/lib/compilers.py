"""The C++ compiler, for code that benchmarks compare with, and a folder for it."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lib.command_line import sized

FOLDER = "BENCH_FOLDER"
"""The environment variable with the folder for compiled code."""
OPTIMIZATION = sized("-O2", "-O0")


@contextmanager
def build_folder() -> Iterator[Path]:
    """The folder of the environment variable, where an earlier benchmark may have compiled the
    same code; without the variable a new folder, which is removed afterwards.
    """
    if FOLDER in os.environ:
        yield Path(os.environ[FOLDER])
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def compile_with(arguments: list[str]) -> None:
    """Compile a shared library."""
    compiler = os.environ.get("CXX", "c++")
    subprocess.run([compiler, OPTIMIZATION, "-fPIC", "-shared", *arguments], check=True)
