"""Texts for logs, errors and ``doctor``, about endpoints, requests, and other people's texts and
exceptions.

User info, queries and values of headers are left out, since each may be a secret and logs go where
secrets don't. What a server says is its own choice: line ends and escape codes would forge lines of
the log, and 60 kB of it fill one.
"""

from __future__ import annotations

import base64
import os
import unicodedata
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import unquote

from otel_recfn.support.interruptions import raised_by_signal_handler

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


def text_by(function: Callable[[Any], str], value: object) -> str:
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
    return safe_text(text_by(repr, value))


def safe_text(text: object, hidden: Iterable[str] = ()) -> str:
    """The first printable characters of a text, 200 at most, without user info and queries, and
    without what is ``hidden``.
    """
    found = text_by(str, text)
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
    name = type(error).__name__
    text = safe_text(_system_error(error), hidden)
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
    found = error
    seen = [error]
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
    user_info = (endpoint.partition("://")[2] or endpoint).rpartition("@")[0]
    query = endpoint.partition("?")[2]
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
