"""The compilation of our libraries against the installed torch, each once, into the private cache.

    find torch ──► key ──► in the cache? ──► yes: check, done
    (its files only)             │
                                 └► no: one process at a time compiles into a temporary directory
                                        (``build_cache.py``)

torch is never imported for it, so that an image can be prepared without the time and memory of an
import.
"""

from __future__ import annotations

import hashlib
import importlib.util
import mmap
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from otel_recfn.errors import ObserverUnavailable
from otel_recfn.pytorch import build_cache
from otel_recfn.support.logs import log
from otel_recfn.version import __version__

T = TypeVar("T")

NATIVE = Path(__file__).resolve().parent.parent / "native"
MACOS = sys.platform == "darwin"
# Functions are aligned as in setup.py: else an operator costs up to 30 ns more or less from build
# to build, as other code moves the callbacks.
FLAGS = ("-fPIC", "-fvisibility=hidden", "-DNDEBUG", "-falign-functions=64") + (
    ("-dynamiclib", "-undefined", "dynamic_lookup")
    if MACOS
    else ("-shared", "-ftls-model=initial-exec")
)
STANDARDS = ("-std=c++17", "-std=c++20")
"""The C++ standards to try, in order: headers up to torch 2.13 take the first, later ones need
the second.
"""
_OWN_INCLUDE = re.compile(r'^#include "(.+)"', re.MULTILINE)
CANNOT_BE_LOADED = (OSError, ImportError, AttributeError)
"""The errors of loading a library that is cut, of another machine or torch, or none of ours."""
COMPILERS = ("c++", "g++", "clang++")
COMPILE_SECONDS = 300
WAIT_SECONDS = 2.0 * COMPILE_SECONDS
"""The seconds to wait for another process that compiles, for each standard."""
BUILD_AHEAD = "or build it ahead with `otel-recfn build` on a machine with the same torch"
"""The way out at the end of messages."""


@dataclass(frozen=True)
class NativeLibrary:
    """A library to compile: ``<folder>/<name>.cpp`` of the native directory, with the headers
    that it includes.
    """

    folder: str
    name: str
    links: tuple[str, ...]
    """The shared libraries of torch that it needs."""
    seconds: int
    """The approximate seconds to compile it."""
    optimize: str
    for_python: bool = False
    """Whether it is an extension of Python's, which needs Python's headers."""

    @property
    def source(self) -> Path:
        """The source file."""
        return NATIVE / self.folder / f"{self.name}.cpp"


TORCH_OBSERVER = NativeLibrary("observer", "torch_observer", ("torch_cpu", "c10"), 10, "-O3")
TORCH_CALLBACKS = NativeLibrary(
    "callbacks", "torch_callbacks", ("torch_python", "torch_cpu", "c10"), 25, "-O2", True
)
LIBRARIES = (TORCH_OBSERVER, TORCH_CALLBACKS)

_failed: dict[tuple[str, ...], str] = {}
"""The failures of this process, by what a user may change: each capture asks, and compilers take
time to fail.
"""


def find_built(library: NativeLibrary) -> Path | None:
    """The library for the installed torch if the cache has it; checked, ready to load."""
    return build_cache.find(build_cache.open_directory(), _build_name(find_torch(), library))


def load(library: NativeLibrary, open_library: Callable[[Path], T]) -> T:
    """Open the library, after building it if the cache doesn't have it.

    Where it can't be compiled or loaded, or the cache can't be trusted, ObserverUnavailable says
    why.
    """
    path = build(library)
    try:
        return open_library(path)
    except CANNOT_BE_LOADED as error:
        message = (
            f"{path} cannot be loaded: {error}; remove it, or set"
            f" {build_cache.ENVIRONMENT_VARIABLE} to another directory"
        )
    _failed[_build_key(find_torch(), library)] = message
    raise ObserverUnavailable(message)


def build(library: NativeLibrary) -> Path:
    """The library for the installed torch, compiled if the cache doesn't have it.

    What a compiler has failed at is not tried again in this process.
    """
    torch = find_torch()
    if (message := _failed.get(_build_key(torch, library))) is not None:
        raise ObserverUnavailable(message)
    cache = build_cache.open_directory()
    name = _build_name(torch, library)
    if (built := build_cache.find(cache, name)) is not None:
        return built
    compiler = find_compiler()
    try:
        with build_cache.workshop(cache, WAIT_SECONDS) as workshop:
            built = build_cache.find(cache, name)
            return built or build_cache.keep(
                _compile(compiler, torch, library, workshop), cache, name, library.name
            )
    except OSError as error:
        raise ObserverUnavailable(
            f"{library.name} cannot be built in {cache}: {error}; set"
            f" {build_cache.ENVIRONMENT_VARIABLE} to a directory that you can write to,"
            f" {BUILD_AHEAD}"
        ) from error


def cache_key(torch: TorchInstallation, library: NativeLibrary) -> str:
    """A hash of everything that the compiled file depends on, in 24 hexadecimal digits."""
    digest = hashlib.sha256()
    for source in _sources(library):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    python = (
        f"{sys.implementation.cache_tag} {sysconfig.get_config_var('SOABI')}"
        f" {platform.python_version()}"
    )
    machine = f"{sys.platform} {platform.machine()}"
    installed = (
        torch.version,
        torch.git_version,
        str(torch.cxx11_abi),
        __version__,
        python,
        machine,
    )
    digest.update("\0".join((*installed, repr(library), *FLAGS, *STANDARDS)).encode())
    return digest.hexdigest()[:24]


def _sources(library: NativeLibrary) -> list[Path]:
    """The source file and every header of ours that it includes, or that one of them does."""
    found = {library.source}
    to_read = [library.source]
    while to_read:
        included = {
            NATIVE / name
            for name in _OWN_INCLUDE.findall(to_read.pop().read_text(encoding="utf-8"))
        } - found
        found |= included
        to_read.extend(included)
    return sorted(found)


def _build_name(torch: TorchInstallation, library: NativeLibrary) -> str:
    return f"{library.name}-{cache_key(torch, library)}"


def _build_key(torch: TorchInstallation, library: NativeLibrary) -> tuple[str, ...]:
    return library.name, str(torch), str(build_cache.chosen_directory()), os.environ.get("CXX", "")


# --- the machine's C++ compiler


def find_compiler() -> list[str]:
    """The C++ compiler as the start of a command: ``$CXX``, else the first of c++, g++, clang++."""
    try:
        chosen = shlex.split(os.environ.get("CXX", ""))
    except ValueError as error:  # a quote without its end, say
        reason = str(error)[:1].lower() + str(error)[1:]
        raise ObserverUnavailable(
            f"CXX={os.environ['CXX']} is no command: {reason}; correct or unset CXX"
        ) from None
    if chosen:
        if shutil.which(chosen[0]) is None:
            raise ObserverUnavailable(
                f"CXX={os.environ['CXX']} names no program that can be run; correct or unset CXX"
            )
        return chosen
    for path in map(shutil.which, COMPILERS):
        if path is not None:
            return [path]
    raise ObserverUnavailable(
        "no C++ compiler found (tried $CXX, c++, g++, clang++); "
        f"{'xcode-select --install' if MACOS else 'apt-get install g++'}, {BUILD_AHEAD}"
    )


def _compile(
    compiler: list[str], torch: TorchInstallation, library: NativeLibrary, workshop: Path
) -> Path:
    log.warning(  # shown even if nobody has set up logging, because the program stands still
        "building %s for torch %s, once, about %d s; `otel-recfn build` does it ahead of time",
        *(library.name, torch.version, library.seconds),
    )
    output = workshop / f"{library.name}.so"
    complaints = []
    for standard in STANDARDS:
        command = [*compiler, standard, *_arguments(torch, library, output)]
        complaint = run_compiler(command)
        if complaint is None:
            return output
        complaints.append(f"$ {shlex.join(command)}\n{complaint[-1500:].strip()}")
    message = (
        f"compiling {library.name} for torch {torch.version} failed; the commands and the end of"
        f" what they said are below. Try another compiler with CXX=..., {BUILD_AHEAD}; then start"
        " the program again.\n" + "\n".join(complaints)
    )
    _failed[_build_key(torch, library)] = message
    raise ObserverUnavailable(message)


def _arguments(torch: TorchInstallation, library: NativeLibrary, output: Path) -> list[str]:
    headers = ["-isystem", str(torch.directory / "include")]
    if library.for_python:
        include = Path(sysconfig.get_paths()["include"])
        if not (include / "Python.h").is_file():
            raise ObserverUnavailable(
                f"Python's C headers are not in {include}; apt-get install python3-dev,"
                f" {BUILD_AHEAD}"
            )
        headers += ["-isystem", str(include)]
    arguments = [
        library.optimize,
        *FLAGS,
        f"-I{NATIVE}",
        *headers,
        str(library.source),
        "-o",
        str(output),
    ]
    if not MACOS:
        arguments.append(f"-D_GLIBCXX_USE_CXX11_ABI={torch.cxx11_abi}")
    lib = torch.directory / "lib"
    return [*arguments, f"-L{lib}", *(f"-l{link}" for link in library.links), f"-Wl,-rpath,{lib}"]


def run_compiler(command: list[str]) -> str | None:
    """The compiler's complaints; None if it succeeded.

    Its output goes to a file and not a pipe: a process that is forked meanwhile would inherit the
    pipe, and keep its reader waiting. Without ``close_fds`` Python has none of its own either: it
    spawns the process, as the path is absolute.
    """
    program = os.path.abspath(shutil.which(command[0]) or command[0])
    quiet, seconds = subprocess.DEVNULL, COMPILE_SECONDS
    try:
        with tempfile.TemporaryFile() as said:
            done = subprocess.run(
                [program, *command[1:]],
                stdin=quiet,
                stdout=said,
                stderr=subprocess.STDOUT,
                timeout=seconds,
                close_fds=False,
            )
            said.seek(0)
            text = said.read().decode("utf-8", "replace")
    except subprocess.TimeoutExpired:
        return f"no result after {COMPILE_SECONDS} s"
    except OSError as error:
        return str(error)
    return None if done.returncode == 0 else (text or f"exit code {done.returncode}, no message")


# --- the installed torch


@dataclass(frozen=True)
class TorchInstallation:
    """The installed torch, as its files describe it."""

    directory: Path
    version: str
    git_version: str
    cxx11_abi: int


def find_torch() -> TorchInstallation:
    """The torch that ``import torch`` would give, without importing it; ObserverUnavailable if
    there is none with headers.
    """
    try:
        spec = importlib.util.find_spec("torch")
    except ValueError:  # something in sys.modules poses as torch
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise ObserverUnavailable("torch is not installed here; pip install torch")
    directory = Path(next(iter(spec.submodule_search_locations))).resolve()
    if not (directory / "include" / "ATen" / "record_function.h").is_file():
        raise ObserverUnavailable(
            f"torch in {directory} has no C++ headers; install torch from a wheel of pytorch.org or"
            " PyPI"
        )
    text = (directory / "version.py").read_text(encoding="utf-8")
    return TorchInstallation(
        directory,
        _assigned_text(text, "__version__"),
        _assigned_text(text, "git_version"),
        _cxx11_abi(directory),
    )


def _assigned_text(text: str, name: str) -> str:
    match = re.search(rf"^{name}\s*(?::[^=]+)?=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    return match.group(1) if match else "unknown"


def _cxx11_abi(directory: Path) -> int:
    """The number of libstdc++'s string type that torch was built with, 0 or 1, as the spelling
    of its symbols shows.
    """
    try:
        with (
            open(directory / "lib" / "libc10.so", "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as image,
        ):
            return 0 if image.find(b"14SourceLocationESs") >= 0 else 1
    except (OSError, ValueError):  # macOS has one string type and another file name
        return 1
