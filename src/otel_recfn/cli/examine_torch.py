"""The doctor on PyTorch: compiler, torch, cache, and torch.compile."""

from __future__ import annotations

import subprocess
import sys

from otel_recfn.cli.check import Check
from otel_recfn.model.errors import RecfnError
from otel_recfn.pytorch import cpp_compiler, observer_build, private_cache, torch_installation
from otel_recfn.pytorch.compiling import LOST

ANSWER_SECONDS = 300
COMPILE_SECONDS = 300
COMPILE = """
import sys
import torch
from otel_recfn import RecordFunction, record_function

outside = record_function("outside")

@record_function("decorated")
def decorated(x):
    with record_function("with"), outside:
        range_ = RecordFunction()
        range_.before("range")
        y = x + 1
        range_.end()
        return y

try:
    torch.compile(decorated, backend="eager", fullgraph=True)(torch.ones(1))
except Exception as error:
    sys.exit(str(error).strip().splitlines()[0])
"""


def compiler() -> Check:
    """Whether there is a compiler. It is needed once per torch, and not where everything is built already."""
    try:
        command = cpp_compiler.find_compiler()
    except RecfnError as error:
        return Check("compiler", None if _built() else False, str(error))
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, errors="replace", timeout=ANSWER_SECONDS)
    version = done.stdout.splitlines()[0] if done.stdout else f"{command[0]} --version said nothing"
    return Check("compiler", True, f"{' '.join(command)}: {version}")


def torch() -> Check:
    """Which torch is installed, found by its files, because importing it takes seconds."""
    try:
        found = torch_installation.find_torch()
    except RecfnError as error:
        return Check("torch", False, str(error))
    return Check("torch", True, f"{found.version} in {found.directory}")


def cache() -> Check:
    """Whether compiled observers may be kept and trusted here."""
    try:
        return Check("cache", True, f"{private_cache.open_directory()}, only you or root can write there")
    except RecfnError as error:
        return Check("cache", False, str(error))


def torch_compile() -> Check:
    """Whether torch.compile compiles a function with ranges in one piece: tried in another process. Spans don't need it."""
    try:
        torch_installation.find_torch()
    except RecfnError:
        return Check("compile", None, "torch is not here, so neither is torch.compile")
    try:
        command = [sys.executable, "-c", COMPILE]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=COMPILE_SECONDS)
    except subprocess.TimeoutExpired:
        return Check("compile", None, f"torch.compile took over {COMPILE_SECONDS} s; does it work without otel-recfn?")
    if done.returncode == 0:
        return Check("compile", True, "torch.compile treats ranges as it does torch.profiler.record_function")
    return Check("compile", None, f"{LOST}: {last_line(done)}; keep ranges out of what is compiled")


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """The end of what a process that failed said of it."""
    return (done.stderr.strip().splitlines() or [f"the process ended with code {done.returncode}"])[-1]


def _built() -> bool:
    try:
        return all(observer_build.find_built(library) is not None for library in observer_build.LIBRARIES)
    except RecfnError:  # the checks of torch and of the cache say why
        return False
