"""Loads the library that calls Python callbacks on PyTorch's operators, and ties it to the runtime."""

from __future__ import annotations

import atexit
import importlib.machinery
import importlib.util
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, cast

from otel_recfn.model.errors import RecfnError
from otel_recfn.model.scope import RecordScope
from otel_recfn.pytorch import details, observer_build
from otel_recfn.runtime import callback_lists, thread_locals
from otel_recfn.runtime.range_properties import InputsError, OperatorName
from otel_recfn.support.forks import Order, around_forks
from otel_recfn.support.interrupts import raised_by_signal_handler

log = logging.getLogger("otel_recfn")

MODULE = "otel_recfn._torch_callbacks"
SLOTS = 64
"""How many callbacks can be on PyTorch's operators at once."""


class RangeOver(RecfnError):
    """A RecordFunction of PyTorch's was read after the callback that got it had returned."""


class Library(Protocol):
    """native/callbacks/torch_callbacks.cpp. Callbacks go by the runtime's handles; unknown ones are ignored."""

    def attach(
        self,
        scopes: tuple[RecordScope, ...],
        operator_name: Callable[[str, str], Any],
        schema: Callable[[str], Any],
        inputs_error: type[Exception],
        over_error: type[Exception],
        reporter: Callable[[int, BaseException, str], bool],
        /,
    ) -> None:
        """Once, before anything else. The reporter is given what a callback raised on which range; True: the program's."""

    def add(self, handle: int, is_global: bool, /, *callback: Any) -> bool:
        """Take a callback; False when there are SLOTS of them already."""

    def remove(self, handle: int, /) -> None:
        """Free its slot. Ranges that it saw begin still reach its end callback."""

    def fail(self, handle: int, /) -> None:
        """Call it no more; it keeps its slot, since threads may still have it in their lists."""

    def switch_global(self, handle: int, enabled: bool, /) -> None:
        """Disable or reenable a global callback."""

    def set_thread(self, handles: tuple[int, ...], /) -> None:
        """The calling thread's own callbacks, all that were added but not as global."""

    def is_enabled(self) -> bool:
        """PyTorch's switch of the calling thread."""

    def seed(self, seed: int, /) -> None:
        """Seed the calling thread's sampling in PyTorch."""

    def starts(self) -> tuple[int, ...]:
        """The addresses of the functions that PyTorch calls where a callback starts."""

    def is_inside(self) -> bool:
        """Whether the calling thread runs a callback."""

    def set_inside(self, inside: bool, /) -> bool:
        """Say whether the calling thread runs a callback; returns what was said before."""

    def close(self) -> None:
        """Call nothing any more, for good: the interpreter goes down."""

    def forked(self) -> None:
        """Called in a forked child."""

    def features(self) -> str:
        """Which details of this torch it found, by their names in ``details.py``, with a minus sign before those it did not."""


_library: Library | None = None


def loaded() -> Library | None:
    """The library, if it was loaded."""
    return _library


def load() -> Library:
    """The library, built if needed and loaded once per process; torch must be imported.

    Raises:
        ObserverUnavailable: it can't be built or loaded here.
        CacheUnsafe: the cache of built libraries can't be trusted.
    """
    global _library
    if _library is None:
        library = observer_build.load(observer_build.TORCH_CALLBACKS, _open)
        details.tell_losses(library.features(), details.CALLBACKS)
        library.attach(tuple(RecordScope), OperatorName, _schema, InputsError, RangeOver, _goes_on_to_the_program)
        atexit.register(library.close)
        around_forks(Order.THREAD_STATE, in_child=library.forked)
        thread_locals.share_torchs_flags(library)
        _library = library
    return _library


def _open(path: Path) -> Library:
    loader = importlib.machinery.ExtensionFileLoader(MODULE, str(path))
    specification = importlib.util.spec_from_file_location(MODULE, path, loader=loader)
    assert specification is not None
    module = importlib.util.module_from_spec(specification)
    loader.exec_module(module)
    return cast(Library, module)


def _schema(text: str) -> Any:
    """PyTorch's FunctionSchema; where this torch has no parser in Python, the text."""
    parse = details.find("parse_schema")
    return parse(text) if parse is not None else text


def _goes_on_to_the_program(handle: int, error: BaseException, name: str) -> bool:
    """A callback raised ``error`` on the range ``name``.

    Its own failure is reported; what a signal handler raised in it is the program's.
    """
    if not isinstance(error, (Exception, SystemExit)) or raised_by_signal_handler(error):
        return True
    callback_lists.failed(handle, error, name)
    return False
