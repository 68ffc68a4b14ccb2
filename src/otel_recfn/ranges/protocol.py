"""What a ``record_function`` object is to those who begin its ranges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias


class RangeHandle(Protocol):
    """A range that is open."""

    @property
    def event_id(self) -> int:
        """The event id of its row; 0 where it is not recorded."""

    def end(self, error: str = "", stacktrace: str = "") -> None:
        """Close it; both as in ``Recorder.end``."""


RangeObserver: TypeAlias = Callable[[str, "str | None", int, str], RangeHandle]
"""Opens a range of ``record_function``: its name, its ``args``, EventFlag bits known now, what it decorates."""


class UserRange(Protocol):
    """A ``record_function`` object."""

    @property
    def name(self) -> str:
        """The name of its ranges."""

    @property
    def args(self) -> str | None:
        """The ``args`` that it was made with."""

    @property
    def _code(self) -> str | None:
        """What it decorates, as ``support/code_text.py`` tells it; None where nothing."""

    _entered: Any
    """A list of ``async_range.Entered``, private to that file; None at first."""
