"""Compiles our libraries against the installed torch, each once, into the private cache.

    find torch ──► key ──► in the cache? ──► yes: check, done
    (its files only)             │
                                 └► no: one process at a time compiles into a temporary directory (``build_cache.py``)

torch is never imported for it, so that an image can be prepared without the time and memory of an import.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import re
import shlex
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from otel_recfn.model.errors import ObserverUnavailable
from otel_recfn.pytorch import build_cache, cpp_compiler, private_cache, torch_installation
from otel_recfn.pytorch.cpp_compiler import BUILD_AHEAD
from otel_recfn.pytorch.torch_installation import TorchInstallation
from otel_recfn.version import __version__

log = logging.getLogger("otel_recfn")

NATIVE = Path(__file__).resolve().parent.parent / "native"
FLAGS = ("-fPIC", "-fvisibility=hidden", "-DNDEBUG") + (
    ("-dynamiclib", "-undefined", "dynamic_lookup") if cpp_compiler.MACOS else ("-shared", "-ftls-model=initial-exec")
)
STANDARDS = ("-std=c++17", "-std=c++20")
"""In the order in which they are tried: the headers up to torch 2.13 take the first, later ones need the second."""
_OWN_INCLUDE = re.compile(r'^#include "(.+)"', re.MULTILINE)
CANNOT_BE_LOADED = (OSError, ImportError, AttributeError)
"""What a library raises that is cut, of another machine or torch, or none of ours."""
T = TypeVar("T")
WAIT_SECONDS = 2.0 * cpp_compiler.COMPILE_SECONDS
"""For another process that compiles, with each standard."""


@dataclass(frozen=True)
class Library:
    """What is compiled here: ``<folder>/<name>.cpp`` of the native directory, with the headers that it includes."""

    folder: str
    name: str
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


TORCH_OBSERVER = Library("observer", "torch_observer", ("torch_cpu", "c10"), 10, "-O3")
TORCH_CALLBACKS = Library(
    "callbacks",
    "torch_callbacks",
    ("torch_python", "torch_cpu", "c10"),
    25,
    "-O2",
    True,
)
LIBRARIES = (TORCH_OBSERVER, TORCH_CALLBACKS)


def find_built(library: Library) -> Path | None:
    """The library for the installed torch if the cache has it already; checked, ready to load.

    Raises:
        ObserverUnavailable: there is no torch.
        CacheUnsafe: the cache can't be trusted.
    """
    return _in_cache(private_cache.open_directory(), torch_installation.find_torch(), library)


_failed: dict[tuple[str, ...], str] = {}
"""Why this process can't have a library, by what a user may change: each capture asks, and compilers take time to fail."""


def load(library: Library, open_library: Callable[[Path], T]) -> T:
    """Open the library; built before where the cache doesn't have it, and built anew where it has one that can't be loaded.

    Raises:
        ObserverUnavailable: it can't be compiled or loaded here.
        CacheUnsafe: the cache can't be trusted.
    """
    path = build(library)
    try:
        return open_library(path)
    except CANNOT_BE_LOADED as error:
        log.info("the cached %s cannot be loaded (%s); building it again", library.name, error)
        unusable = f"{path} cannot be loaded: {error}; run `otel-recfn doctor`"
    try:
        return open_library(build(library, again=True))
    except CANNOT_BE_LOADED as error:
        message = f"what was built of {library.name} cannot be loaded: {error}; run `otel-recfn doctor`"
    except ObserverUnavailable as error:
        message = f"{unusable}. It cannot be built again: {error}"
    _failed[_asked(torch_installation.find_torch(), library)] = message
    raise ObserverUnavailable(message)


def build(library: Library, *, again: bool = False) -> Path:
    """The library for the installed torch; compiled if the cache doesn't have it yet (``again``: even if it does).

    What a compiler has failed at is not tried again in this process.

    Raises:
        ObserverUnavailable: it can't be compiled here.
        CacheUnsafe: the cache can't be trusted.
    """
    torch = torch_installation.find_torch()
    if (message := _failed.get(_asked(torch, library))) is not None:
        raise ObserverUnavailable(message)
    cache = private_cache.open_directory()
    built = None if again else _in_cache(cache, torch, library)
    if built is not None:
        return built
    compiler = cpp_compiler.find_compiler()
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


def _in_cache(cache: Path, torch: TorchInstallation, library: Library) -> Path | None:
    return build_cache.find(cache, _name(torch, library))


def _name(torch: TorchInstallation, library: Library) -> str:
    return f"{library.name}-{cache_key(torch, library)}"


def _compile_in(workshop: Path, cache: Path, torch: TorchInstallation, library: Library, compiler: list[str]) -> Path:
    log.warning(  # shown where nobody has set up logging, too: the program stands still
        "building %s for torch %s, once, about %d s; `otel-recfn build` does it ahead of time",
        *(library.name, torch.version, library.seconds),
    )
    output = workshop / f"{library.name}.so"
    _compile(compiler, torch, library, output)
    built = build_cache.keep(output, cache, _name(torch, library))
    build_cache.prune(cache, library.name)
    return built


def _compile(compiler: list[str], torch: TorchInstallation, library: Library, output: Path) -> None:
    complaints = []
    for standard in STANDARDS:
        command = [*compiler, standard, *_arguments(torch, library, output)]
        complaint = cpp_compiler.run(command)
        if complaint is None:
            return
        complaints.append(f"$ {shlex.join(command)}\n{complaint[-1500:].strip()}")
    message = (
        f"compiling {library.name} for torch {torch.version} failed; the commands and the end of what they said are below. "
        f"Try another compiler with CXX=..., {BUILD_AHEAD}; then start the program again.\n" + "\n".join(complaints)
    )
    _failed[_asked(torch, library)] = message
    raise ObserverUnavailable(message)


def _asked(torch: TorchInstallation, library: Library) -> tuple[str, ...]:
    return library.name, str(torch), str(private_cache.chosen_directory()), os.environ.get("CXX", "")


def _arguments(torch: TorchInstallation, library: Library, output: Path) -> list[str]:
    headers = ["-isystem", str(torch.include), *(_python_headers() if library.for_python else ())]
    arguments = [library.optimize, *FLAGS, f"-I{NATIVE}", *headers, str(library.source), "-o", str(output)]
    if not cpp_compiler.MACOS:
        arguments.append(f"-D_GLIBCXX_USE_CXX11_ABI={torch.cxx11_abi}")
    return [*arguments, f"-L{torch.lib}", *(f"-l{link}" for link in library.links), f"-Wl,-rpath,{torch.lib}"]


def _python_headers() -> list[str]:
    include = Path(sysconfig.get_paths()["include"])
    if not (include / "Python.h").is_file():
        raise ObserverUnavailable(f"Python's C headers are not in {include}; apt-get install python3-dev, {BUILD_AHEAD}")
    return ["-isystem", str(include)]
