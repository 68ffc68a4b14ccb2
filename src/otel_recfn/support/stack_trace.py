"""An exception's stack trace as the text of the ``stacktrace`` column, the same for every source.

It is what Python prints, but for the lines of source code: reading those may read files, and call loaders of the program's.
Frames are read and let go at once, so nothing that they hold lives longer for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from types import TracebackType
from typing import Any

from otel_recfn.support.error_text import error_text, is_failure
from otel_recfn.support.interrupts import raised_by_signal_handler

MOST_BYTES = 8192
"""Of UTF-8: the recorders cut here. What an exception was raised from is left out where it doesn't fit."""
MOST_FRAMES = 40
"""Of each exception: half of them the outermost, half the innermost."""
MOST_WALKED = 2000
"""Frames that are looked at: of a deeper stack the innermost ones aren't known."""
MOST_EXCEPTIONS = 8
_CAUSE, _CONTEXT = "__cause__", "__context__"
_JOINS = {
    _CAUSE: "\nThe above exception was the direct cause of the following exception:\n\n",
    _CONTEXT: "\nDuring handling of the above exception, another exception occurred:\n\n",
}


def failure(error: BaseException | None) -> tuple[str, str]:
    """What a range's end says of the exception that it was left by: its text, and its stack trace. Nothing of control flow."""
    if error is None or not is_failure(error):
        return "", ""
    text = error_text(error)
    return text, stack_trace(error, text)


def stack_trace(error: BaseException, text: str) -> str:
    """The stack trace of an exception, ``text`` being its last line. Never raises; escapes lone surrogates."""
    try:
        whole = _section(error, text)
        for earlier, join in islice(_raised_before(error), MOST_EXCEPTIONS - 1):
            longer = _section(earlier, error_text(earlier)) + join + whole
            if len(longer.encode("utf-8", "backslashreplace")) > MOST_BYTES:
                break
            whole = longer
        return whole.encode("utf-8", "backslashreplace")[:MOST_BYTES].decode("utf-8", "ignore")
    except Exception as raised:  # a code object may have any name
        if raised_by_signal_handler(raised):
            raise
        return ""


def _raised_before(error: BaseException) -> Iterator[tuple[BaseException, str]]:
    """What it was raised from or while handling, newest first, each with the line between it and what it led to."""
    seen = {id(error)}
    while True:
        cause, context = _field(error, _CAUSE), _field(error, _CONTEXT)
        earlier, join = (cause, _JOINS[_CAUSE]) if cause is not None else (context, _JOINS[_CONTEXT])
        if earlier is None or id(earlier) in seen or (cause is None and _field(error, "__suppress_context__")):
            return
        seen.add(id(earlier))
        yield earlier, join
        error = earlier


def _section(error: BaseException, text: str) -> str:
    frames = _frames(_field(error, "__traceback__"))
    return "Traceback (most recent call last):\n" * bool(frames) + "".join(frames) + text + "\n"


def _frames(traceback: TracebackType | None) -> list[str]:
    """Outermost first, a line each."""
    found: list[tuple[str, int, str]] = []
    while traceback is not None and len(found) < MOST_WALKED:
        code = traceback.tb_frame.f_code
        found.append((code.co_filename, traceback.tb_lineno, code.co_name))
        traceback = traceback.tb_next
    lines = [f'  File "{file}", line {line}, in {function}\n' for file, line, function in _ends_of(found)]
    if len(found) > MOST_FRAMES:
        lines.insert(MOST_FRAMES // 2, f"  [{len(found) - MOST_FRAMES} more frames]\n")
    if traceback is not None:
        lines.append("  [frames further in are not shown]\n")
    return lines


def _ends_of(frames: list[tuple[str, int, str]]) -> list[tuple[str, int, str]]:
    return frames if len(frames) <= MOST_FRAMES else frames[: MOST_FRAMES // 2] + frames[-MOST_FRAMES // 2 :]


def _field(error: BaseException, name: str) -> Any:
    """What the exception itself has, whatever its class says under that name."""
    return BaseException.__dict__[name].__get__(error)
