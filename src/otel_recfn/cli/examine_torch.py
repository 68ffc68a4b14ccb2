"""The doctor on PyTorch: compiler, torch, cache, observer, callbacks, what we rely on in Python, and torch.compile."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace

from otel_recfn.cli.check import Check
from otel_recfn.model.errors import RecfnError
from otel_recfn.pytorch import cpp_compiler, details, observer_build, private_cache, torch_installation
from otel_recfn.pytorch.compiling import LOST
from otel_recfn.pytorch.observer_build import Library

LOAD_SECONDS = 300
LOAD_OBSERVER = """
import torch
from otel_recfn.recording.recorder import recorder
from otel_recfn.pytorch.observer import TorchObserver
observer = TorchObserver(recorder)
observer.ensure_loaded()
print(observer.status().features)
"""
LOAD_CALLBACKS = """
import torch
from otel_recfn.pytorch import callbacks_library
print(callbacks_library.load().features())
"""
FIND_DETAILS = """
import torch, torch.utils.checkpoint
from otel_recfn.pytorch import details
print(*details.missing_in_python())
"""
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
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, errors="replace", timeout=LOAD_SECONDS)
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


def observer() -> Check:
    """Whether the observer is built and can be loaded."""
    return _library("observer", observer_build.TORCH_OBSERVER, LOAD_OBSERVER, details.OPERATORS)


def callbacks() -> Check:
    """The same for the library that calls Python callbacks on PyTorch's operators. Spans and files don't need it."""
    check = _library("callbacks", observer_build.TORCH_CALLBACKS, LOAD_CALLBACKS, details.CALLBACKS)
    return replace(check, ok=check.ok or None)


def python_details() -> Check:
    """Whether this torch has what our Python code relies on; for each detail that it lacks, what is lost."""
    try:
        torch_installation.find_torch()
    except RecfnError:
        return Check("details", None, "torch is not here, so nothing is looked for in it")
    try:
        done = _run_elsewhere(FIND_DETAILS, LOAD_SECONDS)
    except subprocess.TimeoutExpired:
        return Check("details", False, f"importing torch took over {LOAD_SECONDS} s")
    if done.returncode != 0:
        return Check("details", False, f"torch cannot be examined: {_last_line(done)}")
    if missing := done.stdout.split():
        return Check("details", None, f"this torch lacks some; {details.losses(missing, details.PYTHON)}")
    return Check("details", True, "this torch has all that is looked for in Python")


def torch_compile() -> Check:
    """Whether torch.compile compiles a function with ranges in one piece: tried in another process. Spans don't need it."""
    try:
        torch_installation.find_torch()
    except RecfnError:
        return Check("compile", None, "torch is not here, so neither is torch.compile")
    try:
        done = _run_elsewhere(COMPILE, COMPILE_SECONDS)
    except subprocess.TimeoutExpired:
        return Check("compile", None, f"torch.compile took over {COMPILE_SECONDS} s; does it work without otel-recfn?")
    if done.returncode == 0:
        return Check("compile", True, "torch.compile treats ranges as it does torch.profiler.record_function")
    return Check("compile", None, f"{LOST}: {_last_line(done)}; keep ranges out of what is compiled")


def _library(name: str, library: Library, load: str, looked_for: Mapping[str, details.Detail]) -> Check:
    try:
        path = observer_build.find_built(library)
        if path is None:
            cpp_compiler.find_compiler()
            text = f"not built yet; built at first use, about {library.seconds} s, or now with `otel-recfn build`"
            return Check(name, True, text)
    except RecfnError as error:
        return Check(name, False, f"cannot be built: {error}")
    return _load_elsewhere(name, str(path), load, looked_for)


def _load_elsewhere(name: str, path: str, load: str, looked_for: Mapping[str, details.Detail]) -> Check:
    """In a process of its own, since a broken torch may take its process down."""
    try:
        done = _run_elsewhere(load, LOAD_SECONDS)
    except subprocess.TimeoutExpired:
        return Check(name, False, f"{path}: loading it took over {LOAD_SECONDS} s; does `import torch` work?")
    if done.returncode != 0:
        return Check(name, False, f"{path} cannot be loaded: {_last_line(done)}")
    found, missing = details.found_and_missing(done.stdout)
    if missing:
        return Check(name, None, f"{path}, but this torch lacks details; {details.losses(missing, looked_for)}")
    return Check(name, True, f"{path}, found in this torch: {', '.join(found)}")


def _run_elsewhere(program: str, seconds: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, errors="replace", timeout=seconds)


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    return (done.stderr.strip().splitlines() or [f"the process ended with code {done.returncode}"])[-1]


def _built() -> bool:
    try:
        return all(observer_build.find_built(library) is not None for library in observer_build.LIBRARIES)
    except RecfnError:  # the checks of torch and of the cache say why
        return False
