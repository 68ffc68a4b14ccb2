"""What logs, errors and ``doctor`` say of an endpoint, of a request, and of a text or an exception of somebody else's.

User info, queries and values of headers are left out, since each may be a secret and logs go where secrets don't. What a server
says is its own choice: line ends and escape codes would forge lines of the log, and 60 kB of it fill one.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator
from urllib.parse import unquote

MAX_CHARACTERS = 200
CUT = "..."
HIDDEN = "***"
SHORTEST_SECRET = 4
"""A shorter value is in any text by chance, and what is left out of one would tell it."""
PUBLIC_HEADERS = {"content-type", "content-encoding", "user-agent"}
MOST_LOOKED_AT = 10_000
MOST_CAUSES = 20
UNUSABLE = "the endpoint or a header can't be used as it is (the error's text is left out, as it quotes them)"
_WORD = re.compile(r"\S+")


def safe_text(text: object, hidden: Iterable[str] = ()) -> str:
    """At most 200 printable characters of it, without user info and queries.

    Args:
        text: what somebody else wrote.
        hidden: what is not to be in it, see ``secrets_of``.
    """
    found = str(text)
    for secret in hidden:
        found = found.replace(secret, HIDDEN)
    found = _WORD.sub(_without_secrets, found)[:MOST_LOOKED_AT]
    short = " ".join("".join([each if each.isprintable() else " " for each in found]).split())
    return short if len(short) <= MAX_CHARACTERS else short[: MAX_CHARACTERS - len(CUT)] + CUT


def safe_endpoint(endpoint: str) -> str:
    """Where it is."""
    return safe_text(endpoint, secrets_of(endpoint))


def safe_error(error: BaseException, hidden: Iterable[str] = ()) -> str:
    """Its type, and the text of the system's error that it was raised for, or its own."""
    name, text = type(error).__name__, safe_text(_system_error(error), hidden)
    return f"{name}: {text}" if text else name


def safe_request_error(error: BaseException, hidden: Iterable[str]) -> str:
    """The same of a request. A ValueError quotes what could not be sent, in a way of its own, and only its type is said."""
    cause = _system_error(error)
    if isinstance(cause, ValueError) and getattr(cause, "errno", None) is None:  # those of certificates have a number
        return f"{type(error).__name__}: {UNUSABLE}"
    return safe_error(error, hidden)


def safe_exception(error: BaseException) -> Exception:
    """For a log's ``exc_info``: where it was raised, and its safe text. The program's exporters raise whole requests."""
    return Exception(safe_error(error)).with_traceback(error.__traceback__)


def secrets_of(endpoint: str, headers: Iterable[tuple[str, str]] = ()) -> tuple[str, ...]:
    """What of an endpoint, and of headers that are sent there, is to be in no text; the longest first."""
    after = endpoint.partition("://")[2] or endpoint
    user_info = after.rpartition("@")[0]
    query = endpoint.partition("?")[2]
    found = {user_info, *user_info.split(":", 1), query, *[each.partition("=")[2] for each in query.split("&")]}
    found |= {base64.b64encode(unquote(user_info).encode("utf-8", "surrogatepass")).decode()}  # sent as a header
    for name, value in headers:
        if name.lower() not in PUBLIC_HEADERS:
            found |= {value, value.strip(), *value.split()[-1:]}
    found |= {unquote(each) for each in found}
    found |= {repr(each)[1:-1] for each in found}
    return tuple(sorted([each for each in found if len(each) >= SHORTEST_SECRET], key=len, reverse=True))


def _without_secrets(word: re.Match[str]) -> str:
    before, scheme, rest = word[0].rpartition("://")
    shown = (rest if scheme else word[0]).rpartition("@")[2]
    address, _, query = shown.partition("?")
    if scheme:
        address, shown = address.partition("#")[0], shown.partition("#")[0]
    has_query = scheme or any(each.isalnum() for each in query)
    return f"{before.rpartition('@')[2].partition('?')[0]}{scheme}{address if has_query else shown}"


def _system_error(error: BaseException) -> BaseException:
    """The first cause that is an OSError: those of libraries hold the whole request in their texts."""
    return [error, *[each for each in _causes(error) if isinstance(each, OSError)]][-1]


def _causes(error: BaseException) -> Iterator[BaseException]:
    for _ in range(MOST_CAUSES):
        cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if cause is None:
            return
        yield (error := cause)
