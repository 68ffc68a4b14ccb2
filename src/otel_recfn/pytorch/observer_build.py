"""Compiles our libraries against the installed torch, each once, into the private cache.

    find torch ──► key ──► in the cache? ──► yes: check, done
    (its files only)             │
                                 └► no: one process at a time compiles into a temporary directory (``build_cache.py``)

torch is never imported for it, so that an image can be prepared without the time and memory of an import.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
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
from dataclasses import dataclass
from pathlib import Path

from otel_recfn.model.errors import RecfnError
from otel_recfn.pytorch import build_cache, private_cache
from otel_recfn.version import __version__

log = logging.getLogger("otel_recfn")

NATIVE = Path(__file__).resolve().parent.parent / "native"
MACOS = sys.platform == "darwin"
FLAGS = ("-fPIC", "-fvisibility=hidden", "-DNDEBUG") + (
    ("-dynamiclib", "-undefined", "dynamic_lookup") if MACOS else ("-shared", "-ftls-model=initial-exec")
)
STANDARDS = ("-std=c++17", "-std=c++20")
"""In the order in which they are tried: the headers up to torch 2.13 take the first, later ones need the second."""
_OWN_INCLUDE = re.compile(r'^#include "(.+)"', re.MULTILINE)
COMPILERS = ("c++", "g++", "clang++")
COMPILE_SECONDS = 300
WAIT_SECONDS = 2.0 * COMPILE_SECONDS
"""For another process that compiles, with each standard."""
BUILD_AHEAD = "or build it ahead with `otel-recfn build` on a machine with the same torch"


class ObserverUnavailable(RecfnError):
    """PyTorch's operators can't be observed here; the message says why, and the way out."""


@dataclass(frozen=True)
class Library:
    """What is compiled here: ``<folder>/<name>.cpp`` of the native directory, with the headers that it includes."""

    folder: str
    name: str
    purpose: str
    """What it does, in words."""
    links: tuple[str, ...]
    """torch's shared libraries that it needs."""
    seconds: int
    """About how long compiling it takes."""
    optimize: str
    for_python: bool = False
    """It is an extension of Python's: it needs Python's headers."""

    @property
    def source(self) -> Path:
        """Its source file."""
        return NATIVE / self.folder / f"{self.name}.cpp"


TORCH_OBSERVER = Library("observer", "torch_observer", "records PyTorch's operators", ("torch_cpu", "c10"), 10, "-O3")
TORCH_CALLBACKS = Library(
    "callbacks",
    "torch_callbacks",
    "calls Python callbacks on PyTorch's operators",
    ("torch_python", "torch_cpu", "c10"),
    25,
    "-O2",
    True,
)
LIBRARIES = (TORCH_OBSERVER, TORCH_CALLBACKS)


@dataclass(frozen=True)
class TorchInstallation:
    """What the files of the installed torch say."""

    directory: Path
    version: str
    git_version: str
    cxx11_abi: int

    @property
    def include(self) -> Path:
        """Its headers."""
        return self.directory / "include"

    @property
    def lib(self) -> Path:
        """Its shared libraries."""
        return self.directory / "lib"


def find_torch() -> TorchInstallation:
    """The torch that ``import torch`` gives, without importing it.

    Raises:
        ObserverUnavailable: there is none, or it came without headers.
    """
    directory = _torch_directory()
    if not (directory / "include" / "ATen" / "record_function.h").is_file():
        raise ObserverUnavailable(f"torch in {directory} has no C++ headers; install torch from a wheel of pytorch.org or PyPI")
    text = (directory / "version.py").read_text(encoding="utf-8")
    return TorchInstallation(directory, _assigned(text, "__version__"), _assigned(text, "git_version"), _cxx11_abi(directory))


def find_compiler() -> list[str]:
    """The C++ compiler as the start of a command: ``$CXX``, else the first of c++, g++, clang++.

    Raises:
        ObserverUnavailable: there is none.
    """
    chosen = shlex.split(os.environ.get("CXX", ""))
    if chosen:
        if shutil.which(chosen[0]) is None:
            raise ObserverUnavailable(f"CXX={os.environ['CXX']} names no program that can be run; correct or unset CXX")
        return chosen
    for name in COMPILERS:
        path = shutil.which(name)
        if path is not None:
            return [path]
    raise ObserverUnavailable(
        "no C++ compiler found (tried $CXX, c++, g++, clang++); "
        f"{'xcode-select --install' if MACOS else 'apt-get install g++'}, {BUILD_AHEAD}"
    )


def find_built(library: Library) -> Path | None:
    """The library for the installed torch if the cache has it already; checked, ready to load.

    Raises:
        ObserverUnavailable: there is no torch.
        CacheUnsafe: the cache can't be trusted.
    """
    return _in_cache(private_cache.open_directory(), find_torch(), library)


def build(library: Library, *, again: bool = False) -> Path:
    """The library for the installed torch; compiled if the cache doesn't have it yet (``again``: even if it does).

    Raises:
        ObserverUnavailable: it can't be compiled here.
        CacheUnsafe: the cache can't be trusted.
    """
    torch = find_torch()
    cache = private_cache.open_directory()
    built = None if again else _in_cache(cache, torch, library)
    if built is not None:
        return built
    compiler = find_compiler()
    try:
        with build_cache.workshop(cache, WAIT_SECONDS) as workshop:
            built = None if again else _in_cache(cache, torch, library)
            return built or _compile_in(workshop, cache, torch, library, compiler)
    except OSError as error:
        raise ObserverUnavailable(
            f"{library.name} cannot be built in {cache}: {error}; set {private_cache.ENVIRONMENT_VARIABLE} to a directory "
            f"that you can write to, {BUILD_AHEAD}"
        ) from error


def cache_key(torch: TorchInstallation, library: Library) -> str:
    """Everything that the compiled file depends on, in 24 hexadecimal digits."""
    digest = hashlib.sha256()
    for source in _sources(library):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    python = f"{sys.implementation.cache_tag} {sysconfig.get_config_var('SOABI')} {platform.python_version()}"
    machine = f"{sys.platform} {platform.machine()}"
    installed = (torch.version, torch.git_version, str(torch.cxx11_abi), __version__, python, machine)
    digest.update("\0".join((*installed, repr(library), *FLAGS, *STANDARDS)).encode())
    return digest.hexdigest()[:24]


def _sources(library: Library) -> list[Path]:
    """The source file and every header of ours that it includes, or that one of them does."""
    found, to_read = {library.source}, [library.source]
    while to_read:
        included = {NATIVE / name for name in _OWN_INCLUDE.findall(to_read.pop().read_text(encoding="utf-8"))} - found
        found |= included
        to_read.extend(included)
    return sorted(found)


def _torch_directory() -> Path:
    try:
        spec = importlib.util.find_spec("torch")
    except ValueError:  # something in sys.modules poses as torch
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise ObserverUnavailable("torch is not installed here; pip install torch")
    return Path(next(iter(spec.submodule_search_locations))).resolve()


def _assigned(text: str, name: str) -> str:
    match = re.search(rf"^{name}\s*(?::[^=]+)?=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    return match.group(1) if match else "unknown"


def _cxx11_abi(directory: Path) -> int:
    """Which of libstdc++'s two string types torch was built with: how its own symbols spell std::string tells."""
    try:
        with open(directory / "lib" / "libc10.so", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as image:
            return 0 if image.find(b"14SourceLocationESs") >= 0 else 1
    except (OSError, ValueError):  # macOS has one string type and another file name
        return 1


def _in_cache(cache: Path, torch: TorchInstallation, library: Library) -> Path | None:
    return build_cache.find(cache, _name(torch, library))


def _name(torch: TorchInstallation, library: Library) -> str:
    return f"{library.name}-{cache_key(torch, library)}"


def _compile_in(workshop: Path, cache: Path, torch: TorchInstallation, library: Library, compiler: list[str]) -> Path:
    log.info("building %s for torch %s, once, about %d s", library.name, torch.version, library.seconds)
    output = workshop / f"{library.name}.so"
    _compile(compiler, torch, library, output)
    built = build_cache.keep(output, cache, _name(torch, library))
    build_cache.prune(cache, library.name)
    return built


def _compile(compiler: list[str], torch: TorchInstallation, library: Library, output: Path) -> None:
    complaints = []
    for standard in STANDARDS:
        command = [*compiler, standard, *_arguments(torch, library, output)]
        complaint = _run(command)
        if complaint is None:
            return
        complaints.append(f"$ {shlex.join(command)}\n{complaint[-1500:].strip()}")
    raise ObserverUnavailable(
        f"compiling {library.name} for torch {torch.version} failed; the commands and the end of what they said are below. "
        f"Try another compiler with CXX=..., {BUILD_AHEAD}.\n" + "\n".join(complaints)
    )


def _arguments(torch: TorchInstallation, library: Library, output: Path) -> list[str]:
    headers = ["-isystem", str(torch.include), *(_python_headers() if library.for_python else ())]
    arguments = [library.optimize, *FLAGS, f"-I{NATIVE}", *headers, str(library.source), "-o", str(output)]
    if not MACOS:
        arguments.append(f"-D_GLIBCXX_USE_CXX11_ABI={torch.cxx11_abi}")
    return [*arguments, f"-L{torch.lib}", *(f"-l{link}" for link in library.links), f"-Wl,-rpath,{torch.lib}"]


def _python_headers() -> list[str]:
    include = Path(sysconfig.get_paths()["include"])
    if not (include / "Python.h").is_file():
        raise ObserverUnavailable(f"Python's C headers are not in {include}; apt-get install python3-dev, {BUILD_AHEAD}")
    return ["-isystem", str(include)]


def _run(command: list[str]) -> str | None:
    """What the compiler complained about; None where it succeeded."""
    try:
        return _run_without_pipes(command)
    except subprocess.TimeoutExpired:
        return f"no result after {COMPILE_SECONDS} s"
    except OSError as error:
        return str(error)


def _run_without_pipes(command: list[str]) -> str | None:
    """A process that is forked meanwhile keeps what pipes are open, and who reads them waits for its end.

    Without ``close_fds`` Python has none of its own either: it spawns the process, as the path is absolute.
    """
    program = shutil.which(command[0]) or command[0]
    with tempfile.TemporaryFile() as said:
        done = subprocess.run(
            [os.path.abspath(program), *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            timeout=COMPILE_SECONDS,
            close_fds=False,
        )
        said.seek(0)
        text = said.read().decode("utf-8", "replace")
    return None if done.returncode == 0 else (text or f"exit code {done.returncode}, no message")
