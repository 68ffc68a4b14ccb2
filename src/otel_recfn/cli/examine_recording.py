"""The doctor on what records: package, recorder, compiler, torch, cache, observer and callbacks."""

from __future__ import annotations

import platform
import subprocess
import sys
from dataclasses import fields, replace

from otel_recfn.cli.check import Check
from otel_recfn.model.errors import RecfnError
from otel_recfn.pytorch import observer_build, private_cache
from otel_recfn.pytorch.compiling import LOST
from otel_recfn.pytorch.observer_build import Library
from otel_recfn.recording import backend
from otel_recfn.settings import Settings
from otel_recfn.version import __version__

LOAD_SECONDS = 60
LOAD_OBSERVER = """
import torch
from otel_recfn.recording.backend import recorder
from otel_recfn.pytorch.observer import TorchObserver
observer = TorchObserver(recorder())
observer.ensure_loaded()
print("this torch announces:", observer.status().features)
"""
LOAD_CALLBACKS = """
import torch
from otel_recfn.pytorch import callbacks as torch_callbacks
torch_callbacks.load()
print(torch_callbacks.SLOTS, "callbacks in Python can be on PyTorch's operators at once")
"""
COMPILE_SECONDS = 60
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


def package() -> Check:
    """Versions, for a bug report."""
    return Check("package", True, f"otel-recfn {__version__}, Python {platform.python_version()}, {platform.platform()}")


def recorder() -> Check:
    """Which of the twins records, and why."""
    chosen = backend.choose()
    return Check("recorder", chosen.kind == "native", f"{chosen.kind}: {chosen.reason}")


def settings() -> Check:
    """What the environment asks for; a value that isn't allowed keeps everything else from starting."""
    try:
        found = Settings.resolve({})
    except RecfnError as error:
        return Check("settings", False, str(error))
    values = {item.name: getattr(found, item.name) for item in fields(found) if getattr(found, item.name) != item.default}
    return Check("settings", True, ", ".join(f"{name}={value!r}" for name, value in values.items()) or "the defaults")


def compiler() -> Check:
    """Needed once per torch; not where everything is built already."""
    try:
        command = observer_build.find_compiler()
    except RecfnError as error:
        return Check("compiler", None if _built() else False, str(error))
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, errors="replace", timeout=10)
    version = done.stdout.splitlines()[0] if done.stdout else f"{command[0]} --version said nothing"
    return Check("compiler", True, f"{' '.join(command)}: {version}")


def torch() -> Check:
    """Found by its files: importing it takes seconds."""
    try:
        found = observer_build.find_torch()
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
    """Built and loadable."""
    return _library("observer", observer_build.TORCH_OBSERVER, LOAD_OBSERVER)


def callbacks() -> Check:
    """The same, for callbacks in Python on PyTorch's operators; spans and files do without."""
    check = _library("callbacks", observer_build.TORCH_CALLBACKS, LOAD_CALLBACKS)
    return replace(check, ok=check.ok or None)


def torch_compile() -> Check:
    """Whether it compiles functions with ranges in one piece, tried in a process of its own; spans and files do without."""
    try:
        observer_build.find_torch()
    except RecfnError:
        return Check("compile", None, "torch is not here, so neither is torch.compile")
    try:
        done = _run_elsewhere(COMPILE, COMPILE_SECONDS)
    except subprocess.TimeoutExpired:
        return Check("compile", None, f"torch.compile took over {COMPILE_SECONDS} s; does it work without otel-recfn?")
    if done.returncode == 0:
        return Check("compile", True, "torch.compile treats ranges as it does torch.profiler.record_function")
    return Check("compile", None, f"{LOST}: {_last_line(done)}; keep ranges out of what is compiled")


def _library(name: str, library: Library, load: str) -> Check:
    try:
        path = observer_build.find_built(library)
        if path is None:
            observer_build.find_compiler()
            text = f"not built yet; built at first use, about {library.seconds} s, or now with `otel-recfn build`"
            return Check(name, True, text)
    except RecfnError as error:
        return Check(name, False, f"cannot be built: {error}")
    return _load_elsewhere(name, str(path), load)


def _load_elsewhere(name: str, path: str, load: str) -> Check:
    """In a process of its own, since a broken torch may take its process down."""
    try:
        done = _run_elsewhere(load, LOAD_SECONDS)
    except subprocess.TimeoutExpired:
        return Check(name, False, f"{path}: loading it took over {LOAD_SECONDS} s; does `import torch` work?")
    if done.returncode == 0:
        return Check(name, True, f"{path} ({done.stdout.strip()})")
    return Check(name, False, f"{path} cannot be loaded: {_last_line(done)}")


def _run_elsewhere(program: str, seconds: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, errors="replace", timeout=seconds)


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    return (done.stderr.strip().splitlines() or [f"the process ended with code {done.returncode}"])[-1]


def _built() -> bool:
    try:
        return all(observer_build.find_built(library) is not None for library in observer_build.LIBRARIES)
    except RecfnError:
        return False
