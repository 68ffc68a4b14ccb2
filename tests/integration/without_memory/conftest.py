"""Programs in which allocations can be made to fail. Nothing may raise into them, and all counters balance."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from prepared_programs import PreparedPrograms
from soak import SOAK

Run: TypeAlias = Callable[..., "subprocess.CompletedProcess[str]"]
HERE = Path(__file__).parent
HEAD = f"import sys\nsys.path.insert(0, {str(HERE)!r})\n"
IMPORTED = ("numpy.typing", "opentelemetry.sdk.trace.export", "opentelemetry.instrumentation.instrumentor", "isal.igzip_lib")
IMPORTED += ("multiprocessing.context", "encodings.idna", "hashlib", "hmac", "mmap", "netrc", "secrets", "shlex")
FINENESS = SOAK * int(os.environ.get("FAULT_FINENESS", "48"))  # 1000000 tries each allocation
LEAVE = """
import os, sys
if sys.version_info < (3, 11):  # which frees a function's cache twice where its 1,024th call found no memory for it
    sys.stdout.flush()
    os._exit(0)
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is preloaded."""
    if not sys.platform.startswith("linux"):
        pytest.skip("the library that lets allocations fail is for glibc")
    if shutil.which("cc") is None:
        pytest.skip("the library that lets allocations fail has to be compiled")
    path = tmp_path_factory.mktemp("failing") / "failing_allocations.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(path), str(HERE / "failing_allocations.c")], check=True)
    return path


@pytest.fixture(scope="session")
def preloaded(library: Path) -> Iterator[PreparedPrograms]:
    """Has imported what ours imports of others."""
    programs = PreparedPrograms(*IMPORTED, LD_PRELOAD=str(library), PYTHONMALLOC="malloc")
    yield programs
    programs.close()


@pytest.fixture
def run_failing(run_prepared: Callable[[PreparedPrograms], Run], preloaded: PreparedPrograms) -> Run:
    """Runs a program in which allocations can be made to fail."""
    start = run_prepared(preloaded)

    def run(program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return start(HEAD + program + LEAVE, *arguments, FAULT_FINENESS=str(FINENESS), **environment)

    return run
