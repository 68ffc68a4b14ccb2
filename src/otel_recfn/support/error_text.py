"""Whether an exception is a failure, and its text for the ``error`` column: the same for every source.

Exceptions that Python, or a library, steers by are none: a generator that is closed early, an iterator that ends, a task that
is cancelled, a program that exits well. Nor are exceptions that are derived from those.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

MAX_CHARACTERS = 1024
"""The text is cut here so that a long one doesn't wait in a buffer; the recorder's exact limit is in bytes."""

_control_flow: tuple[type[BaseException], ...] = (GeneratorExit, StopIteration, StopAsyncIteration)
_CANCELLED = {
    "asyncio.exceptions": "CancelledError",
    "concurrent.futures": "CancelledError",
    "greenlet": "GreenletExit",
}
"""By module: such an exception can't be there before its module is imported, which we don't do ourselves."""
_EXIT_CODE = SystemExit.__dict__["code"]


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
