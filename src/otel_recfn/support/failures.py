"""What rows say of an exception: whether it is a failure, its text and its stack trace; the same for every source.

Exceptions that Python, or a library, steers by are no failures: a generator that is closed early, an iterator that ends, a task
that is cancelled, a program that exits well. Nor are exceptions that are derived from those.

A stack trace is what Python prints, but for the lines of source code: reading those may read files, and call loaders of the
program's. Frames are read and let go at once, so nothing that they hold lives longer for it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from types import TracebackType
from typing import Any

from otel_recfn.support.interrupts import raised_by_signal_handler

MAX_CHARACTERS = 1024
"""Of the text, which is cut here so that a long one doesn't wait in a buffer; the recorder's exact limit is in bytes."""

_control_flow: tuple[type[BaseException], ...] = (GeneratorExit, StopIteration, StopAsyncIteration)
_CANCELLED = {
    "asyncio.exceptions": "CancelledError",
    "concurrent.futures": "CancelledError",
    "greenlet": "GreenletExit",
}
"""By module: such an exception can't be there before its module is imported, which we don't do ourselves."""
_EXIT_CODE = SystemExit.__dict__["code"]
MOST_BYTES = 8192
"""Of a stack trace in UTF-8: the recorder cuts here. What an exception was raised from is left out where it doesn't fit."""
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


def add_control_flow(kind: type[BaseException]) -> None:
    """Exceptions of this type are no failures either, from now on."""
    global _control_flow
    if kind not in _control_flow:
        _control_flow = (*_control_flow, kind)


def is_failure(error: BaseException) -> bool:
    """Whether a range that is left by it has failed. Never raises."""
    kind = type(error)  # isinstance would ask the exception for its class
    if issubclass(kind, (*_control_flow, *_cancelled())):
        return False
    return not issubclass(kind, SystemExit) or not _is_success(_EXIT_CODE.__get__(error))


def _cancelled() -> Iterator[type[BaseException]]:
    for module, name in _CANCELLED.items():
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type):
            yield kind


def _is_success(code: Any) -> bool:
    """Whether a program that exits by ``SystemExit(code)`` has ended well."""
    return code is None or (issubclass(type(code), int) and int.__eq__(code, 0) is True)


def error_text(error: BaseException) -> str:
    """``"<qualified type>: <message>"``, or the type alone where there is no message. Never raises; escapes lone surrogates."""
    try:
        name = _qualified_name(type(error))
    except Exception:  # a metaclass may say anything
        name = "Exception"
    try:
        message = str(error)
    except Exception:  # __str__ belongs to whoever raised it
        message = "<message unavailable: its __str__ failed>"
    text = f"{name}: {message}" if message else name
    return text[:MAX_CHARACTERS].encode("utf-8", "backslashreplace").decode("utf-8")


def _qualified_name(kind: type[BaseException]) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


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
