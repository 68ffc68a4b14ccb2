"""What traced calls are called, and which are not shown: of ours, none."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from types import CodeType, FrameType
from typing import TypeAlias

from otel_recfn.model.python_calls import ALL_CALLS, PythonCalls, places_of
from otel_recfn.support.texts import python_call_name

ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+>$")
OWN = str(Path(__file__).parents[2]) + os.sep
OWN_THAT_CALLS = tuple(OWN + part for part in ("ranges" + os.sep, "callbacks" + os.sep, f"sources{os.sep}steps.py"))
"""What of ours calls functions of the program, which are to be seen."""


class Hides(IntEnum):
    """What is not shown of a call."""

    ITSELF = 1
    """The call, and its own calls of C functions."""
    ALL_BELOW = 2
    """The call, and all that it calls."""


CallText: TypeAlias = "str | Hides | Callable[[FrameType], str | None]"
"""What a call is called, or what is not shown of it; a function of its frame, where not its code alone says it."""
FrameNamer: TypeAlias = "Callable[[CodeType, str], Hides | Callable[[FrameType], str | None] | None]"
"""Of code whose calls are named by their frames, and of its usual name: how, or that they aren't shown. None for other code."""


class ProgramTexts:
    """Names as torch.profiler's, but that those of C functions have no addresses: a method has one name.

    The tracer in C asks at first sight of a code object or C function, in the traced thread. It reads the attributes, too.

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

    Args:
        namer: knows calls that are named by their frames.
        asked: the ends of the names of the files whose code it knows.
        calls: which calls are shown.
    """

    def __init__(self, namer: FrameNamer, asked: tuple[str, ...], calls: PythonCalls = ALL_CALLS) -> None:
        self._namer = namer
        self.included, self.excluded = places_of(calls.include), places_of(calls.exclude)
        self.c_calls, self.call_sites, self.max_depth = calls.c_calls, calls.call_sites, calls.max_depth
        self.prefixes = path_prefixes(sys.path)
        self.own: tuple[str, ...] = (OWN,)
        self.own_that_calls = OWN_THAT_CALLS
        self.asked = asked

    def of_code(self, code: CodeType, line: int) -> CallText:
        """What calls that run this code from that line on are called."""
        file = code.co_filename
        if file.startswith(OWN):
            return Hides.ITSELF if file.startswith(self.own_that_calls) else Hides.ALL_BELOW
        trimmed = self._trimmed(file)
        if not self._selects(file, trimmed):
            return Hides.ITSELF
        usual = python_call_name(trimmed, line, code.co_name)
        by_frame = self._namer(code, usual) if file.endswith(self.asked) else None
        return by_frame if by_frame is not None else usual

    def of_function(self, function: object) -> str:
        """What calls of a C function are called."""
        return ADDRESS.sub(">", repr(function))

    def _selects(self, file: str, trimmed: str) -> bool:
        included = not self.included or _is_at_one_of(self.included, file) or _is_at_one_of(self.included, trimmed)
        return included and not _is_at_one_of(self.excluded, file) and not _is_at_one_of(self.excluded, trimmed)

    def _trimmed(self, file: str) -> str:
        for prefix in self.prefixes:
            if file.startswith(prefix):
                return file[len(prefix) :]
        return file


def _is_at_one_of(places: tuple[str, ...], file: str) -> bool:
    return any(file.startswith(place) if place.endswith(os.sep) else file == place for place in places)


def path_prefixes(path: list[str]) -> tuple[str, ...]:
    """What to take away from the names of files that modules of this ``sys.path`` come from, the longest first."""
    folders = {os.path.abspath(folder).rstrip(os.sep) + os.sep for folder in path if isinstance(folder, str)}
    return tuple(sorted(folders, key=len, reverse=True))
