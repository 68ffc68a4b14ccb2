"""Texts of exceptions and their stack traces, and which of them are failures."""

from __future__ import annotations

import sys
from traceback import walk_tb
from typing import Any

from otel_recfn.support.interruptions import raised_by_signal_handler
from otel_recfn.support.safe_texts import text_by
from otel_recfn.support.texts import utf8_text

MAX_CHARACTERS = 1024
"""The most characters of an exception's text; the recorder's exact limit is in bytes."""
MAX_BYTES = 8192
"""The most bytes of a stack trace in UTF-8.

What an exception was raised from is left out if it doesn't fit.
"""
MAX_FRAMES = 40
"""The most frames of each exception: half of them the outermost, half the innermost."""
MAX_EXCEPTIONS = 8
CAUSED = "\nThe above exception was the direct cause of the following exception:\n\n"
HANDLED = "\nDuring handling of the above exception, another exception occurred:\n\n"

_control_flow: tuple[type[BaseException], ...] = (GeneratorExit, StopIteration, StopAsyncIteration)
_CANCELLED = {
    "asyncio.exceptions": "CancelledError",
    "concurrent.futures": "CancelledError",
    "greenlet": "GreenletExit",
}
"""The exceptions of cancellation by module: none can be there before its module is imported,
which we don't do ourselves.
"""


def add_control_flow(kind: type[BaseException]) -> None:
    """Count exceptions of this type as no failures, from now on."""
    global _control_flow
    if kind not in _control_flow:
        _control_flow = (*_control_flow, kind)


def is_failure(error: BaseException) -> bool:
    """Whether a range has failed that this exception left: it is none by which Python, or a
    library, steers, as when a generator is closed early, an iterator ends, a task is cancelled, or
    a program exits well.
    """
    kind = type(error)
    cancelled = [
        getattr(sys.modules.get(module), name, None) for module, name in _CANCELLED.items()
    ]
    if issubclass(kind, (*_control_flow, *[each for each in cancelled if isinstance(each, type)])):
        return False
    if not issubclass(kind, SystemExit):
        return True
    code = getattr(error, "code", None)
    return code is not None and not (isinstance(code, int) and code == 0)  # 0.0 exits badly


def error_text(error: BaseException) -> str:
    """``"<qualified type>: <message>"``, or the type alone where there is no message.

    Never raises; escapes lone surrogates.
    """
    kind = type(error)
    name = (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
    message = text_by(str, error)
    return utf8_text((f"{name}: {message}" if message else name)[:MAX_CHARACTERS])


def failure(error: BaseException | None) -> tuple[str, str]:
    """The text of the exception that left a range, and its stack trace; empty for control flow."""
    if error is None:
        return "", ""
    try:
        if not is_failure(error):
            return "", ""
        text = error_text(error)
        return text, stack_trace(error, text)
    except BaseException as raised:  # the exception's class may define anything
        if raised_by_signal_handler(raised):
            raise
        return "Exception", ""


def stack_trace(error: BaseException, text: str) -> str:
    """Python's text of an exception, with ``text`` last, and without source code, which may have
    to be read from files.
    """
    whole = _section(error, text)
    seen = [error]
    while len(seen) < MAX_EXCEPTIONS:
        cause = error.__cause__
        earlier = cause if cause is not None or error.__suppress_context__ else error.__context__
        if earlier is None or any(earlier is each for each in seen):
            break
        longer = (
            _section(earlier, error_text(earlier))
            + (CAUSED if cause is not None else HANDLED)
            + whole
        )
        if len(longer.encode()) > MAX_BYTES:
            break
        seen.append(earlier)
        whole, error = longer, earlier
    return whole.encode()[:MAX_BYTES].decode("utf-8", "ignore")


def exception_attributes(error: str) -> dict[str, str]:
    """The attributes of the semantic conventions for an exception's text."""
    kind, _, message = error.partition(": ")
    return {"exception.type": kind, "exception.message": message}


def stacktrace_attributes(stacktrace: str) -> dict[str, str]:
    """That of its stack trace; none if there is none."""
    return {"exception.stacktrace": stacktrace} if stacktrace else {}


def _section(error: BaseException, text: str) -> str:
    codes = [(frame.f_code, line) for frame, line in walk_tb(error.__traceback__)]
    frames = [
        f'  File "{code.co_filename}", line {line}, in {code.co_name}\n'
        for code, line in _both_ends(codes)
    ]
    if len(codes) > MAX_FRAMES:
        frames.insert(MAX_FRAMES // 2, f"  [{len(codes) - MAX_FRAMES} more frames]\n")
    return utf8_text(
        "".join([*["Traceback (most recent call last):\n"] * bool(frames), *frames, text, "\n"])
    )


def _both_ends(frames: list[Any]) -> list[Any]:
    """The outermost and the innermost frames."""
    return (
        frames
        if len(frames) <= MAX_FRAMES
        else frames[: MAX_FRAMES // 2] + frames[-MAX_FRAMES // 2 :]
    )
