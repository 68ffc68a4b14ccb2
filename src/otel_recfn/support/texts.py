"""Texts that rows hold: of code and calls, of exceptions and their stack traces; and texts as UTF-8 and JSON."""

from __future__ import annotations

import json
import re
import sys
from traceback import walk_tb
from typing import Any, NamedTuple

# --- UTF-8, which can't hold lone surrogates, and JSON

SURROGATE = re.compile("[\ud800-\udfff]")


def text_of_utf8(text: str) -> str:
    """The same text with lone surrogates escaped as ``\\udxxx``: one that UTF-8 can hold."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def json_value(value: object) -> str:
    """A text, or lists and dicts of texts and numbers, as JSON that can be encoded as UTF-8.

    With as few escapes as possible: Perfetto refuses a whole trace for one character beyond U+FFFF that is written as an
    escaped pair of surrogates, and shows other escaped characters as their escapes.
    """
    return json_of_utf8(json.dumps(value, ensure_ascii=False))


def json_of_utf8(json_text: str) -> str:
    """The same JSON with lone surrogates, which only stand inside strings, as the text ``\\udxxx``."""
    return json_text if json_text.isascii() else SURROGATE.sub(lambda found: f"\\\\u{ord(found[0]):04x}", json_text)


# --- code and calls, called as torch.profiler calls them: ``model.py(12): forward``, or the repr of a C function

MOST_WRAPPERS = 50
_NAME = re.compile(r"(?P<file>.*)\((?P<line>\d+)\): (?P<function>.*)", re.DOTALL)
"""Greedy: a file's name may look like that too, a function's can't."""


class CalledCode(NamedTuple):
    """What was called."""

    function: str
    file: str = ""
    """Empty for a C function."""
    line: int = 0


def python_call_name(file: str, line: int, function: str) -> str:
    """The name of a call of a Python function."""
    return f"{file}({line}): {function}"


def called_code(name: str) -> CalledCode:
    """What a call of that name called."""
    parts = _NAME.fullmatch(name)
    return CalledCode(name) if parts is None else CalledCode(parts["function"], parts["file"], int(parts["line"]))


def code_text(function: Any) -> str:
    """``file(line): module.qualified_name`` of a function, a method or an object that is called; empty where there is none.

    Of a function that ``functools.wraps`` tells of, the wrapped one. Never raises.
    """
    try:
        function = _innermost(function)
        if not hasattr(function, "__code__"):
            function = _innermost(type(function).__call__)
        code = function.__code__
        return python_call_name(code.co_filename, code.co_firstlineno, f"{function.__module__}.{function.__qualname__}")
    except Exception:  # it is written in C, or its attributes are the program's own code
        return ""


def _innermost(function: Any) -> Any:
    for _ in range(MOST_WRAPPERS):
        function = getattr(function, "__func__", function)
        wrapped = getattr(function, "__wrapped__", None)
        if wrapped is None:
            break
        function = wrapped
    return function


# --- exceptions

MAX_CHARACTERS = 1024
"""Of an exception's text; the recorder's exact limit is in bytes."""
MOST_BYTES = 8192
"""Of a stack trace in UTF-8. What an exception was raised from is left out where it doesn't fit."""
MOST_FRAMES = 40
"""Of each exception: half of them the outermost, half the innermost."""
MOST_EXCEPTIONS = 8
CAUSED = "\nThe above exception was the direct cause of the following exception:\n\n"
HANDLED = "\nDuring handling of the above exception, another exception occurred:\n\n"

_control_flow: tuple[type[BaseException], ...] = (GeneratorExit, StopIteration, StopAsyncIteration)
_CANCELLED = {
    "asyncio.exceptions": "CancelledError",
    "concurrent.futures": "CancelledError",
    "greenlet": "GreenletExit",
}
"""By module: such an exception can't be there before its module is imported, which we don't do ourselves."""


def add_control_flow(kind: type[BaseException]) -> None:
    """Exceptions of this type are no failures either, from now on."""
    global _control_flow
    if kind not in _control_flow:
        _control_flow = (*_control_flow, kind)


def is_failure(error: BaseException) -> bool:
    """Whether a range that is left by it has failed, and not by an exception that Python, or a library, steers by: a generator
    that is closed early, an iterator that ends, a task that is cancelled, a program that exits well."""
    kind = type(error)
    cancelled = [getattr(sys.modules.get(module), name, None) for module, name in _CANCELLED.items()]
    if issubclass(kind, (*_control_flow, *[each for each in cancelled if isinstance(each, type)])):
        return False
    code = getattr(error, "code", None)
    return not issubclass(kind, SystemExit) or not (code is None or (isinstance(code, int) and code == 0))  # 0.0 exits badly


def error_text(error: BaseException) -> str:
    """``"<qualified type>: <message>"``, or the type alone where there is no message. Never raises; escapes lone surrogates."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        message = str(error)
    except Exception:  # __str__ belongs to whoever raised it
        message = "<message unavailable: its __str__ failed>"
    return text_of_utf8((f"{name}: {message}" if message else name)[:MAX_CHARACTERS])


def failure(error: BaseException | None) -> tuple[str, str]:
    """What a range's end says of the exception that it was left by: its text, and its stack trace. Nothing of control flow."""
    if error is None or not is_failure(error):
        return "", ""
    try:
        text = error_text(error)
        return text, stack_trace(error, text)
    except Exception:  # the exception's class may define anything
        return "Exception", ""


def stack_trace(error: BaseException, text: str) -> str:
    """What Python prints of an exception, ``text`` being its last line, but for lines of source code: reading those may read
    files, and call loaders of the program's."""
    whole, seen = _section(error, text), [error]
    while len(seen) < MOST_EXCEPTIONS:
        cause = error.__cause__
        earlier = cause if cause is not None or error.__suppress_context__ else error.__context__
        if earlier is None or any(earlier is each for each in seen):
            break
        longer = _section(earlier, error_text(earlier)) + (CAUSED if cause is not None else HANDLED) + whole
        if len(longer.encode()) > MOST_BYTES:
            break
        seen.append(earlier)
        whole, error = longer, earlier
    return whole.encode()[:MOST_BYTES].decode("utf-8", "ignore")


def _section(error: BaseException, text: str) -> str:
    codes = [(frame.f_code, line) for frame, line in walk_tb(error.__traceback__)]
    frames = [f'  File "{code.co_filename}", line {line}, in {code.co_name}\n' for code, line in _ends(codes)]
    if len(codes) > MOST_FRAMES:
        frames.insert(MOST_FRAMES // 2, f"  [{len(codes) - MOST_FRAMES} more frames]\n")
    return text_of_utf8("".join([*["Traceback (most recent call last):\n"] * bool(frames), *frames, text, "\n"]))


def _ends(frames: list[Any]) -> list[Any]:
    """The outermost and the innermost ones."""
    return frames if len(frames) <= MOST_FRAMES else frames[: MOST_FRAMES // 2] + frames[-MOST_FRAMES // 2 :]
