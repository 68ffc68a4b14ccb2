"""The doctor on what records: package, settings and recorder."""

from __future__ import annotations

import os
import platform
from dataclasses import fields

from otel_recfn.cli.check import Check
from otel_recfn.model.errors import RecfnError
from otel_recfn.settings import Settings
from otel_recfn.settings.table import unknown_variables
from otel_recfn.support.native_part import native_part
from otel_recfn.version import __version__


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
