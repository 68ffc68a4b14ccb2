"""The one place that chooses between the native recorder and its Python twin, and can say why.

``OTEL_RECFN_RECORDER`` may ask for one of them; the default takes the native one where it was built.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal, NamedTuple

from otel_recfn.model.errors import SettingError
from otel_recfn.recording.protocol import Recorder
from otel_recfn.support.fork_safe_lock import ForkSafeLock
from otel_recfn.support.interpreters import in_main_interpreter, is_free_threaded
from otel_recfn.support.locked import locked_by
from otel_recfn.support.twins import VARIABLE, wanted_twin

ALLOWED = ("auto", "native", "python")
BUILD_NOTE = Path(__file__).parent.parent / "native_build.json"
WAY_OUT = (
    "install a C++ compiler (Debian: apt-get install g++), then otel-recfn once more from where it came from, "
    "with pip install --force-reinstall --no-cache-dir"
)


class Backend(NamedTuple):
    """The recorder of this process."""

    recorder: Recorder
    kind: Literal["native", "python"]
    reason: str
    """Why this one, in words; where it is the Python twin for want of the native one, also what to do about it."""


_chosen: Backend | None = None
_choosing = ForkSafeLock()


@locked_by(_choosing)
def choose() -> Backend:
    """The process's backend, made by the first call.

    Raises:
        SettingError: ``OTEL_RECFN_RECORDER`` isn't one of the allowed values, or asks for a native recorder that isn't there.
    """
    global _chosen
    if _chosen is None:
        _chosen = _make(wanted_twin())
    return _chosen


def recorder() -> Recorder:
    """The process's one recorder."""
    return choose().recorder


def _make(wanted: str) -> Backend:
    if wanted not in ALLOWED:
        raise SettingError(f"{VARIABLE}={wanted!r} is not a recorder; allowed: {', '.join(ALLOWED)}")
    if is_free_threaded():
        return Backend(_python(), "python", "this CPython is free-threaded, and nothing is recorded without a GIL")
    if not in_main_interpreter():
        return Backend(_python(), "python", "this is a subinterpreter, where nothing is recorded")
    if wanted == "python":
        return Backend(_python(), "python", f"{VARIABLE}=python asks for the Python twin")
    try:
        native = _native()
    except ImportError as error:
        missing = f"the native recorder is not available ({_why_not_native(error)}); {WAY_OUT}"
        if wanted == "native":
            raise SettingError(f"{VARIABLE}=native, but {missing}") from error
        return Backend(_python(), "python", f"{missing}. Until then the Python twin records, at about ten times the cost")
    return Backend(native, "native", f"{VARIABLE}={wanted}, and the native recorder was built")


def _native() -> Recorder:
    from otel_recfn.recording.native_recorder import NativeRecorder

    return NativeRecorder()


def _python() -> Recorder:
    from otel_recfn.recording.python.recorder import PythonRecorder

    return PythonRecorder()


def _why_not_native(error: ImportError) -> str:
    """What setup.py noted about the build, or what the import said where it noted nothing or a success."""
    try:
        note = json.loads(BUILD_NOTE.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return str(error)
    reason = "" if note.get("built") else str(note.get("reason", ""))
    return f"its build failed: {reason}" if reason else str(error)
