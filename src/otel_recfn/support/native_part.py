"""The native part: the one way to it, the one error if it is missing, and what can be imported
then.

``from otel_recfn import _native`` comes here, too, where nobody has imported it yet.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from otel_recfn.errors import RecorderUnavailable

INTERPRETERS = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
"""The module of CPython that can tell interpreters apart."""
BUILD_NOTE = Path(__file__).parent.parent / "native_build.json"
"""The note of setup.py about the build."""
WAY_OUT = (
    "install a C++ compiler (Debian: apt-get install g++), then otel-recfn once more from where it"
    " came from, with pip install --force-reinstall --no-cache-dir"
)


def native_part() -> ModuleType:
    """The module ``otel_recfn._native``; a RecorderUnavailable where it was not built, or can't
    run.
    """
    # Even with PYTHON_GIL=1, since the native part would need other headers.
    if "t" in getattr(sys, "abiflags", ""):
        raise RecorderUnavailable(
            "otel-recfn needs a GIL, and this CPython is free-threaded: instrument or profile with"
            " the usual build, whose name has no t at its end; record_function works here too, and"
            " records nothing"
        )
    if not _in_main_interpreter():
        raise RecorderUnavailable(
            "otel-recfn records in the main interpreter only, and this is a subinterpreter: "
            "instrument or profile there; record_function works here too, and records nothing"
        )
    try:
        return import_module("otel_recfn._native")
    except ImportError as error:
        reason = str(error)
        with suppress(OSError, ValueError):
            note = json.loads(BUILD_NOTE.read_text(encoding="utf-8"))
            reason = (
                f"its build failed: {note['reason']}"
                if not note.get("built") and note.get("reason")
                else reason
            )
        raise RecorderUnavailable(
            f"otel-recfn has no native part here, so nothing is recorded ({reason}); {WAY_OUT}"
        ) from error


class _Placeholder(type):
    """The type of stand-ins, which are classes, as programs derive classes of their own from
    some.
    """

    def __call__(cls, *_args: Any, **_kwargs: Any) -> Any:
        """Raise RecorderUnavailable."""
        native_part()

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):  # which Python itself asks for
            raise AttributeError(name)
        native_part()


@cache
def placeholder(name: str) -> Any:
    """A class in place of a class or function that needs the native part.

    It can be imported, and raises RecorderUnavailable when it is used.
    """
    return _Placeholder(name, (), {})


def placeholders(names: Collection[str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a module that could not import these names."""

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"there is no {name!r} here")
        return placeholder(name)

    return find


def _in_main_interpreter() -> bool:
    """Whether this code runs in the main interpreter; True if CPython can't say."""
    try:
        module = import_module(INTERPRETERS)
        return bool(module.get_current() == module.get_main())
    except (ImportError, AttributeError):
        return True
