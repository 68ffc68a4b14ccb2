"""The C++ compiler, for what benchmarks compare with."""

from __future__ import annotations

import os
import subprocess


def compile_with(arguments: list[str]) -> None:
    subprocess.run(
        [os.environ.get("CXX", "c++"), "-O2", "-fPIC", "-shared", *arguments], check=True
    )
