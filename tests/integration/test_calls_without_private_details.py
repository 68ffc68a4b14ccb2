"""The call tracer on a CPython without the private function by which it reaches threads that run already."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from patience import PATIENCE_S

HIDING = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

void *dlsym(void *handle, const char *name) {
  static void *(*real)(void *, const char *);
  if (!real) real = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
  if (!real) real = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
  return strcmp(name, "_PyEval_SetProfile") ? real(handle, name) : NULL;
}
"""

PROGRAM = """
import sys
import threading

from otel_recfn import profile

if hasattr(sys, "monitoring"):  # else it would not need profile functions
    for tool in (3, 4):
        sys.monitoring.use_tool_id(tool, "another's")


def of_main(): pass
def of_early(): pass
def of_late(): pass
def of_late_again(): pass


def early():
    begun.set()
    profiling.wait()
    of_early()
    early_done.set()


def late():
    of_late()
    late_done.set()
    stopped.wait()
    sees_that_it_is_over.set()
    profiling_again.wait()
    of_late_again()


begun, early_done, profiling, late_done, stopped = [threading.Event() for _ in range(5)]
sees_that_it_is_over, profiling_again = threading.Event(), threading.Event()
first = threading.Thread(target=early)
first.start()
begun.wait()
with profile(python_calls=True) as prof:
    of_main()
    profiling.set()
    early_done.wait()
    second = threading.Thread(target=late)
    second.start()
    late_done.wait()
print(sorted({event.name.split(": ")[1] for event in prof.events() if ": of_" in event.name}))
stopped.set()
sees_that_it_is_over.wait()
with profile(python_calls=True) as prof:
    profiling_again.set()
    second.join()
    of_main()
print(sorted({event.name.split(": ")[1] for event in prof.events() if ": of_" in event.name}))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux") or shutil.which("gcc") is None, reason="needs Linux and gcc")
@pytest.mark.parametrize("hidden", [False, True])
def test_without_the_function_that_reaches_other_threads(tmp_path: Path, hidden: bool) -> None:
    preloaded = {}
    if hidden:
        (tmp_path / "hiding.c").write_text(HIDING)
        command = ["gcc", "-shared", "-fPIC", "-w", "-o", str(tmp_path / "hiding.so"), str(tmp_path / "hiding.c"), "-ldl"]
        if subprocess.run(command, timeout=PATIENCE_S, check=False).returncode:
            pytest.skip("this libc's dlsym can't be replaced")
        preloaded = {"LD_PRELOAD": str(tmp_path / "hiding.so")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=os.environ | preloaded, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == ("['of_late', 'of_main']" if hidden else "['of_early', 'of_late', 'of_main']")
    assert second == ("['of_main']" if hidden else "['of_late_again', 'of_main']")
    assert ("this CPython has no _PyEval_SetProfile" in done.stderr) is hidden
