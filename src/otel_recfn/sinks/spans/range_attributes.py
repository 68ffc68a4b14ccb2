"""The attributes that say where a range ran, and what its columns of texts hold."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from otel_recfn.model.batch import Track
from otel_recfn.model.columns import EACH_KEY, Column
from otel_recfn.model.events import RecordScope
from otel_recfn.sinks.spans.span_limits import AttributeValue
from otel_recfn.support.code_names import called_code
from otel_recfn.support.texts import element_texts, utf8_text, values_by_key

Attributes = dict[str, AttributeValue]
_INT64_MAX = (1 << 63) - 1


@lru_cache(4096)
def base_attributes(scope: int, thread: Track) -> dict[str, AttributeValue]:
    """The attributes that all ranges of a scope in a thread share."""
    return {"recfn.scope": RecordScope(scope).name, **track_attributes(thread)}


def track_attributes(thread: Track) -> dict[str, AttributeValue]:
    """The attributes of a thread that recorded something."""
    return {"recfn.thread_id": _signed(thread.thread_id), **thread_attributes(thread)}


def text_attributes(column: Column[Any, Any], text: str) -> Mapping[str, AttributeValue]:
    """The attributes for a text of that column."""
    if column.attribute == EACH_KEY:
        return values_by_key(text)
    return {column.attribute: element_texts(text) if column.is_json else utf8_text(text)}


def code_attributes(name: str) -> dict[str, AttributeValue]:
    """The attributes of the semantic conventions for code, for a call with that name or of that
    code.
    """
    code = called_code(name)
    attributes: dict[str, AttributeValue] = {"code.function.name": code.function}
    if code.file:
        attributes |= {"code.file.path": code.file, "code.line.number": code.line}
    return attributes


def thread_attributes(thread: Track) -> dict[str, AttributeValue]:
    """The attributes of the semantic conventions for threads, of threads that Python knows."""
    attributes: dict[str, AttributeValue] = {}
    if thread.ident:
        attributes["thread.id"] = _signed(thread.ident)
    if thread.name:
        attributes["thread.name"] = utf8_text(thread.name)
    return attributes


def _signed(number: int) -> int:
    """The same 64 bits as a signed integer, since OTLP's integers are signed."""
    return number - (1 << 64) if number > _INT64_MAX else number
