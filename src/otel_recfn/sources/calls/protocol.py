"""What the tracer of Python calls asks of whoever names them.

The tracer sets itself as the profile function of threads, and keeps for each of them the stack of calls that it has seen begin:

    call    name of the code object ─► Recorder.begin_call ─► push
    return                             Recorder.end        ◄─ pop

An exit ends the innermost call, also where a greenlet has switched stacks meanwhile. So calls always nest. One of a frame whose
call isn't on the stack ends none: it began long before, or another tool of ``sys.monitoring`` raised at its begin or return, of
which CPython tells as of one more end.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from types import CodeType, FrameType
from typing import Protocol, TypeAlias


class Hides(IntEnum):
    """What is not shown of a call."""

    ITSELF = 1
    """The call, and its own calls of C functions."""
    ALL_BELOW = 2
    """The call, and all that it calls."""


CallText: TypeAlias = "str | Hides | Callable[[FrameType], str | None]"
"""What a call is called, or what is not shown of it; a function of its frame, where not its code alone says it."""


class CallTexts(Protocol):
    """What calls are called. Asked at first sight of a code object or C function, in the traced thread.

    Attributes:
        prefixes: what to take away from the names of files, the longest first.
        own: beginnings of the names of our files.
        own_that_calls: of these, those that call functions of the program.
        asked: endings of the names of files about which the tracer, which knows the rest from these attributes, asks.
        included: files, and folders with a slash at their end, whose functions are shown, as they are or without a prefix; all
            where there are none.
        excluded: those whose functions are not shown.
        c_calls: whether calls of C functions are shown.
        call_sites: whether each call says which line called it.
        max_depth: how many calls may be shown within each other, of those that began while it traces; None: any number.
    """

    prefixes: tuple[str, ...]
    own: tuple[str, ...]
    own_that_calls: tuple[str, ...]
    asked: tuple[str, ...]
    included: tuple[str, ...]
    excluded: tuple[str, ...]
    c_calls: bool
    call_sites: bool
    max_depth: int | None

    def of_code(self, code: CodeType, line: int) -> CallText:
        """Of calls that run this code from that line on."""

    def of_function(self, function: object) -> str:
        """Of calls of a C function."""
