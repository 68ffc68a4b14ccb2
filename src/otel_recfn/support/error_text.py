"""An exception as the text of the ``error`` column, the same for both recorders and for every source."""

from __future__ import annotations

MAX_CHARACTERS = 1024
"""The text is cut here so that a long one doesn't wait in a buffer; the recorder's exact limit is in bytes."""


def error_text(error: BaseException) -> str:
    """``"<qualified type>: <message>"``, or the type alone where there is no message. Never raises; escapes lone surrogates.

    Empty for GeneratorExit, as in OpenTelemetry's spans: a generator that is closed early has not failed.
    """
    if issubclass(type(error), GeneratorExit):  # isinstance would ask the exception for its class
        return ""
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
