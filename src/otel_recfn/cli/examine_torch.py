"""The doctor on PyTorch's files: compiler, torch, cache."""

from __future__ import annotations

import subprocess

from otel_recfn.cli.check import Check
from otel_recfn.model.errors import RecfnError
from otel_recfn.pytorch import cpp_compiler, observer_build, private_cache, torch_installation

ANSWER_SECONDS = 300


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


def _built() -> bool:
    try:
        return all(observer_build.find_built(library) is not None for library in observer_build.LIBRARIES)
    except RecfnError:  # the checks of torch and of the cache say why
        return False
