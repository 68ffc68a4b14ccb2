"""Loads the library that calls Python callbacks on PyTorch's operators (``native/callbacks/torch_callbacks.cpp``)."""

from __future__ import annotations

import atexit
import importlib.machinery
import importlib.util
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from otel_recfn.callbacks import thread_locals
from otel_recfn.model.errors import InputsError, RangeOver
from otel_recfn.model.events import RecordScope
from otel_recfn.pytorch import details
from otel_recfn.support.forks import Order, around_forks

log = logging.getLogger("otel_recfn")

MODULE = "otel_recfn._torch_callbacks"
SLOTS = 64
"""How many callbacks can be on PyTorch's operators at once."""


class OperatorName(NamedTuple):
    """The two parts of an operator's name, as its schema has them."""

    name: str
    overload_name: str


Library: TypeAlias = Any
"""The extension module. Callbacks go by our handles; unknown ones are ignored."""
Report: TypeAlias = Callable[[int, BaseException, str], bool]
"""Is given what a callback, by its handle, raised on which range; true where that goes on to the program."""

_library: Library | None = None


def loaded() -> Library | None:
    """The library, if it was loaded."""
    return _library


def load(report: Report) -> Library:
    """The library, built if needed and loaded once per process; torch must be imported.

    Args:
        report: the first one given is told of what callbacks raise.

    Raises:
        ObserverUnavailable: it can't be built or loaded here.
        CacheUnsafe: the cache of built libraries can't be trusted.
    """
    global _library
    if _library is None:
        from otel_recfn.pytorch import observer_build  # which programs without callbacks need not import

        library = observer_build.load(observer_build.TORCH_CALLBACKS, _open)
        details.tell_losses(library.features(), details.CALLBACKS)
        library.attach(tuple(RecordScope), OperatorName, _schema, InputsError, RangeOver, report)
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
    return module


def _schema(text: str) -> Any:
    """PyTorch's FunctionSchema; where this torch has no parser in Python, the text."""
    parse = details.find("parse_schema")
    return parse(text) if parse is not None else text
