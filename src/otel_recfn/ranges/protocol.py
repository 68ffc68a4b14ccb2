"""What ranges of ``record_function`` need of a recorder, and what is needed of a ``record_function`` object."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias


class RangeHandle(Protocol):
    """A range that is open."""

    @property
    def event_id(self) -> int:
        """The event id of its row; 0 where it is not recorded."""

    def end(self, error: str = "", stacktrace: str = "") -> None:
        """Close it; both as in RangeRecorder.end."""


RangeObserver: TypeAlias = Callable[[str, "str | None", int, str], RangeHandle]
"""Opens a range of ``record_function``: its name, its ``args``, EventFlag bits known now, what it decorates."""


class RangeRecorder(Protocol):
    """The part of a recorder (``recording/protocol.py``) that these ranges use."""

    def begin(self, name: str, scope: int, source: int, module: str = "", flags: int = 0, *, code: str = "") -> int:
        """Open a range in this thread. Returns its event id, or 0 when it is not recorded (not recording, or no room).

        Its parent is what began last, as the calling task sees it: the innermost open range, or the span that is current. A
        range with EventFlag.ASYNC is among those ranges only between ``enter`` and ``leave``, any other from here to its end.
        """

    def end(self, event_id: int, error: str = "", flags: int = 0, stacktrace: str = "") -> None:
        """Close a range, from any thread. Zero and ids that are no longer open are ignored.

        ``error`` is ``"<exception type>: <message>"`` and sets EventFlag.ERROR; ``flags`` are EventFlag bits known only now.
        ``stacktrace`` says where that was raised; it isn't kept where the range began on another thread.
        """

    def enter(self, event_id: int) -> Any | None:
        """From here on the calling task is in that open range; ``leave`` takes what is returned.

        What the task has begun since goes on enclosing, and after that the range, if it was begun in it. None where nothing
        changes: the range is over, or the task has begun something newer outside it.
        """

    def leave(self, entered: Any) -> None:
        """The task is not in that range any more. From any task, also where it is over already."""

    def is_in(self, entered: Any) -> bool:
        """Whether the calling task is in what it, or the task that launched it, entered."""

    @property
    def range_observer(self) -> RangeObserver | None:
        """Opens ranges in the recorder's place; None where none is set."""


class UserRange(Protocol):
    """A ``record_function`` object, Python's or C's."""

    @property
    def name(self) -> str:
        """The name of its ranges."""

    @property
    def args(self) -> str | None:
        """The ``args`` that it was made with."""

    @property
    def _recorder(self) -> RangeRecorder:
        """What records its ranges."""

    @property
    def _code(self) -> str | None:
        """What it decorates, as ``support/code_text.py`` tells it; None where nothing."""

    _entered: Any
    """A list of ``async_range.Entered``, private to that file; None at first."""
