"""Texts of code, calls, exceptions, stack traces and inputs; as UTF-8 and JSON; and, of other
people's, for logs.
"""

from __future__ import annotations

import base64
import json
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from traceback import walk_tb
from typing import Any, NamedTuple
from urllib.parse import unquote

from otel_recfn.support.interruptions import ignoring_errors, raised_by_signal_handler

# --- UTF-8, which can't hold lone surrogates, and JSON

SURROGATE = re.compile("[\ud800-\udfff]")


def utf8_text(text: str) -> str:
    """The same text with lone surrogates escaped as ``\\udxxx``: one that UTF-8 can hold."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def json_value(value: object) -> str:
    """A text, or lists and dicts of texts and numbers, as JSON that can be encoded as UTF-8.

    With as few escapes as possible: Perfetto refuses a whole trace for one character beyond U+FFFF
    that is written as an escaped pair of surrogates, and shows other escaped characters as their
    escapes.
    """
    return utf8_json(json.dumps(value, ensure_ascii=False))


def utf8_json(json_text: str) -> str:
    """The same JSON with lone surrogates, which only stand inside strings, as the text
    ``\\udxxx``.
    """
    return (
        json_text
        if json_text.isascii()
        else SURROGATE.sub(lambda found: f"\\\\u{ord(found[0]):04x}", json_text)
    )


# --- code and calls, called as torch.profiler calls them: ``model.py(12): forward``, or the repr
# of a C function

MAX_WRAPPERS = 50
_NAME = re.compile(r"(?P<file>.*)\((?P<line>\d+)\): (?P<function>.*)", re.DOTALL)
"""The pattern of a name.

It is greedy, because a file's name may look like that too, and a function's can't.
"""


class CalledCode(NamedTuple):
    """The function that was called, and where it is written."""

    function: str
    file: str = ""
    """The file; empty for a C function."""
    line: int = 0


def python_call_name(file: str, line: int, function: str) -> str:
    """The name of a call of a Python function."""
    return f"{file}({line}): {function}"


def called_code(name: str) -> CalledCode:
    """The code that a call of that name called."""
    parts = _NAME.fullmatch(name)
    return (
        CalledCode(name)
        if parts is None
        else CalledCode(parts["function"], parts["file"], int(parts["line"]))
    )


def code_text(function: Any) -> str:
    """``file(line): module.qualified_name`` of a function, a method or an object that is called;
    empty if there is none.

    Of a function that ``functools.wraps`` made, it is that of the wrapped one. Never raises.
    """
    with ignoring_errors():  # it is written in C, or its attributes are the program's own code
        function = _innermost(function)
        if not hasattr(function, "__code__"):
            function = _innermost(type(function).__call__)
        code = function.__code__
        return python_call_name(
            code.co_filename, code.co_firstlineno, f"{function.__module__}.{function.__qualname__}"
        )
    return ""


def _innermost(function: Any) -> Any:
    for _ in range(MAX_WRAPPERS):
        function = getattr(function, "__func__", function)
        wrapped = getattr(function, "__wrapped__", None)
        if wrapped is None:
            break
        function = wrapped
    return function


# --- exceptions

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
    message = _text_by(str, error)
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
    whole, seen = _section(error, text), [error]
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


# --- texts for logs, errors and ``doctor``, about endpoints, requests, and other people's texts and
# exceptions
#
# User info, queries and values of headers are left out, since each may be a secret and logs go
# where secrets don't. What a server says is its own choice: line ends and escape codes would forge
# lines of the log, and 60 kB of it fill one.

MAX_SHOWN_NAMES = 200
HIDDEN = "***"
SHORTEST_SECRET = 4
"""The shortest secret that is hidden: a shorter one is in any text by chance, and hiding it would
reveal it.
"""
PUBLIC_HEADERS = {"content-type", "content-encoding", "user-agent"}
UNUSABLE = (
    "the endpoint or a header can't be used as it is (the error's text is left out, as it quotes"
    " them)"
)


def _text_by(function: Callable[[Any], str], value: object) -> str:
    """The text that ``str`` or ``repr`` makes of other people's object, whose class may define
    anything.
    """
    try:
        return function(value)
    except BaseException as error:
        if raised_by_signal_handler(error):
            raise
        return f"<message unavailable: its __{function.__name__}__ failed>"


def safe_repr(value: object) -> str:
    """The ``repr`` of a value as ``safe_text``."""
    return safe_text(_text_by(repr, value))


def safe_text(text: object, hidden: Iterable[str] = ()) -> str:
    """The first printable characters of a text, 200 at most, without user info and queries, and
    without what is ``hidden``.
    """
    found = _text_by(str, text)
    for secret in hidden:
        found = found.replace(secret, HIDDEN)
    found = " ".join([_without_secrets(word) for word in found.split()])
    short = " ".join("".join([each if each.isprintable() else " " for each in found]).split())
    return short if len(short) <= MAX_SHOWN_NAMES else f"{short[: MAX_SHOWN_NAMES - 3]}..."


def visible(text: str) -> str:
    """A text with escapes for the characters that would steer a terminal or hide there: all that
    aren't printable, except line ends and spaces."""
    return text if text.isprintable() else "".join(map(_visible, text))


def _visible(sign: str) -> str:
    if sign.isprintable() or sign == "\n" or unicodedata.category(sign) == "Zs":
        return sign
    return sign.encode("unicode_escape").decode()


def _without_secrets(word: str) -> str:
    before, scheme, remainder = word.rpartition("://")
    return scheme.join([part.rpartition("@")[2].partition("?")[0] for part in (before, remainder)])


def safe_error(error: BaseException, hidden: Iterable[str] = ()) -> str:
    """The type of an error, and the text of the system's error behind it, or its own."""
    name, text = type(error).__name__, safe_text(_system_error(error), hidden)
    return f"{name}: {text}" if text else name


def safe_request_error(error: BaseException, hidden: Iterable[str]) -> str:
    """The same for a request.

    A ValueError quotes what could not be sent in its own way, so only its type is shown.
    """
    cause = _system_error(error)
    # Errors of certificates have a number.
    if isinstance(cause, ValueError) and getattr(cause, "errno", None) is None:
        return f"{type(error).__name__}: {UNUSABLE}"
    return safe_error(error, hidden)


def safe_exception(error: BaseException) -> Exception:
    """An exception for a log's ``exc_info``: its place and its safe text, since exporters raise
    whole requests.
    """
    return Exception(safe_error(error)).with_traceback(error.__traceback__)


def _system_error(error: BaseException) -> BaseException:
    """The first cause that is an OSError: those of libraries hold the whole request in their
    texts.
    """
    found, seen = error, [error]
    while (cause := seen[-1].__cause__ or seen[-1].__context__) is not None and all(
        cause is not each for each in seen
    ):
        seen.append(cause)
        found = cause if isinstance(cause, OSError) else found
    return found


def secrets_of(endpoint: str, headers: Iterable[tuple[str, str]] = ()) -> tuple[str, ...]:
    """The parts of an endpoint, and of headers that are sent there, that may be in no text; the
    longest first.
    """
    user_info, query = (
        (endpoint.partition("://")[2] or endpoint).rpartition("@")[0],
        endpoint.partition("?")[2],
    )
    found = {
        user_info,
        *user_info.split(":", 1),
        query,
        *[each.partition("=")[2] for each in query.split("&")],
    }
    # Sent as a header.
    found |= {base64.b64encode(unquote(user_info).encode("utf-8", "surrogatepass")).decode()}
    for name, value in headers:
        if name.lower() not in PUBLIC_HEADERS:
            found |= {value, value.strip(), *value.split()[-1:]}
    found |= {unquote(each) for each in found}
    found |= {repr(each)[1:-1] for each in found}
    return tuple(
        sorted([each for each in found if len(each) >= SHORTEST_SECRET], key=len, reverse=True)
    )


def secrets_from_environment() -> tuple[str, ...]:
    """The values of ``OTEL_EXPORTER_OTLP_*`` that may be in no text."""

    def variables(name: str) -> list[str]:
        return [
            os.environ.get(f"OTEL_EXPORTER_OTLP_{signal}{name}", "") for signal in ("TRACES_", "")
        ]

    headers = [
        text.partition("=") for setting in variables("HEADERS") for text in setting.split(",")
    ]
    named = [(name.strip(), value) for name, _, value in headers]
    return tuple(
        [secret for endpoint in variables("ENDPOINT") for secret in secrets_of(endpoint, named)]
    )


# --- lists of shapes and of dtypes; objects of attributes

MAX_PARSED = 4096
"""The most texts of inputs that are kept parsed; programs have few."""


@lru_cache(MAX_PARSED)
def element_texts(text: str) -> tuple[str, ...]:
    """The elements of a JSON list, each as a text that UTF-8 can hold: a string as it is, a shape
    as ``[2, 3]``.

    A text that is no such list is the only element, so that no batch is lost.
    """
    elements = _parsed_list(text)
    if elements is None:
        return (utf8_text(text),)
    return tuple(utf8_text(one) if isinstance(one, str) else json_value(one) for one in elements)


@lru_cache(MAX_PARSED)
def values_by_key(text: str) -> Mapping[str, Any]:
    """The values of a JSON object, as attributes: one that can't be any becomes a text.

    Empty if it is no object.
    """
    try:
        found = json.loads(text)
    except ValueError:  # no JSON
        return {}
    return (
        {utf8_text(key): _attribute_value(value) for key, value in found.items()}
        if isinstance(found, dict)
        else {}
    )


def _attribute_value(value: Any) -> Any:
    if isinstance(value, str):
        return utf8_text(value)
    if (
        isinstance(value, list)
        and len({*map(type, value)}) <= 1
        and all(isinstance(each, (str, int, float)) for each in value)
    ):
        return tuple(map(_attribute_value, value))
    return value if isinstance(value, (int, float)) else json_value(value)


def flat_shapes(text: str) -> tuple[tuple[int, ...], ...]:
    """The shape of each tensor in a JSON list; empty for a list of tensors."""
    shapes = [shape if isinstance(shape, list) else () for shape in _parsed_list(text) or ()]
    return tuple(
        [tuple(shape) if all(isinstance(size, int) for size in shape) else () for shape in shapes]
    )


@lru_cache(MAX_PARSED)
def _parsed_list(text: str) -> tuple[Any, ...] | None:
    try:
        elements = json.loads(text)
    except ValueError:  # no JSON
        return None
    return tuple(elements) if isinstance(elements, list) else None
