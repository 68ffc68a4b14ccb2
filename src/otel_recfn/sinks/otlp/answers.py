"""What servers say in their answers: how many spans they rejected, and when they want to be asked again.

ExportTraceServiceResponse { partial_success = 1 { rejected_spans = 1, error_message = 2 } }
google.rpc.Status { details = 3 { type_url = 1, value = 2 } }, in which RetryInfo { retry_delay = 1 { seconds = 1, nanos = 2 } }
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timezone
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from otel_recfn.sinks.otlp.wire import BYTES, VARINT, fields, signed

RETRY_INFO = b"type.googleapis.com/google.rpc.RetryInfo"
MOST_DELAY_S = 600.0
"""A server that wants to be left alone for longer is asked then all the same."""


class PartialSuccess(NamedTuple):
    """What a server says of a request that it took."""

    rejected: int = 0
    message: str = ""


def partial_success(response: bytes) -> PartialSuccess:
    """Of an ``ExportTraceServiceResponse``; nothing where it is none."""
    try:
        told = _last_message(response, 1)
        rejected = [signed(value) for number, _, value in fields(told) if number == 1 and isinstance(value, int)] or [0]
        return PartialSuccess(max(0, rejected[0]), _last_message(told, 2).decode("utf-8", "replace"))
    except ValueError:
        return PartialSuccess()


def retry_info_s(status: bytes) -> float | None:
    """The delay in a ``google.rpc.Status``; None where it has none."""
    try:
        for number, kind, detail in fields(status):
            if number == 3 and kind == BYTES and isinstance(detail, bytes) and _last_message(detail, 1) == RETRY_INFO:
                return _within(_duration_s(_last_message(_last_message(detail, 2), 1)))
    except ValueError:
        pass
    return None


def retry_after_s(header: str | None, now: Callable[[], float] = time.time) -> float | None:
    """The delay in a ``Retry-After``: seconds, or an HTTP date; None where it says neither."""
    if header is None:
        return None
    try:
        return _within(float(header)) if header.strip().isdecimal() else _within(_date_s(header) - now())
    except (TypeError, ValueError, OverflowError):
        return None


def _date_s(header: str) -> float:
    date = parsedate_to_datetime(header)
    return (date if date.tzinfo is not None else date.replace(tzinfo=timezone.utc)).timestamp()


def _duration_s(duration: bytes) -> float:
    told = {number: signed(value) for number, kind, value in fields(duration) if kind == VARINT and isinstance(value, int)}
    return told.get(1, 0) + told.get(2, 0) / 1e9


def _within(delay_s: float) -> float:
    return min(max(0.0, delay_s), MOST_DELAY_S)


def _last_message(message: bytes, wanted: int) -> bytes:
    """A field with bytes, of which the last one counts."""
    found = b""
    for number, kind, value in fields(message):
        if number == wanted and kind == BYTES and isinstance(value, bytes):
            found = value
    return found
