"""The doctor on what records: package, settings and recorder; PyTorch's files, the compiler and the cache."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import fields

from otel_recfn.cli.check import Check
from otel_recfn.model.errors import RecfnError
from otel_recfn.pytorch import build_cache, observer_build
from otel_recfn.settings import Settings
from otel_recfn.settings.table import unknown_variables
from otel_recfn.support.native_part import native_part
from otel_recfn.version import __version__

ANSWER_SECONDS = 300


def package() -> Check:
    """Versions, for a bug report."""
    return Check("package", True, f"otel-recfn {__version__}, Python {platform.python_version()}, {platform.platform()}")


def recorder() -> Check:
    """Whether there is the native part, and why not."""
    try:
        return Check("recorder", True, str(native_part().__file__))
    except RecfnError as error:
        return Check("recorder", False, str(error))


def settings() -> Check:
    """What the environment asks for; a value that isn't allowed keeps everything else from starting."""
    try:
        found = Settings.resolve({})
    except RecfnError as error:
        return Check("settings", False, str(error))
    unknown = unknown_variables(os.environ)
    if unknown:
        return Check("settings", False, "; ".join(unknown))
    values = {item.name: getattr(found, item.name) for item in fields(found) if getattr(found, item.name) != item.default}
    return Check("settings", True, ", ".join(f"{name}={value!r}" for name, value in values.items()) or "the defaults")


def compiler() -> Check:
    """Whether there is a compiler. It is needed once per torch, and not where everything is built already."""
    try:
        command = observer_build.find_compiler()
    except RecfnError as error:
        return Check("compiler", None if _built() else False, str(error))
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, errors="replace", timeout=ANSWER_SECONDS)
    version = done.stdout.splitlines()[0] if done.stdout else f"{command[0]} --version said nothing"
    return Check("compiler", True, f"{' '.join(command)}: {version}")


def torch() -> Check:
    """Which torch is installed, found by its files, because importing it takes seconds."""
    try:
        found = observer_build.find_torch()
    except RecfnError as error:
        return Check("torch", False, str(error))
    return Check("torch", True, f"{found.version} in {found.directory}")


def cache() -> Check:
    """Whether compiled observers may be kept and trusted here."""
    try:
        return Check("cache", True, f"{build_cache.open_directory()}, only you or root can write there")
    except RecfnError as error:
        return Check("cache", False, str(error))


def _built() -> bool:
    try:
        return all(observer_build.find_built(library) is not None for library in observer_build.LIBRARIES)
    except RecfnError:  # the checks of torch and of the cache say why
        return False
