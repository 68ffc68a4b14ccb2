"""The JSON of a Chrome trace, read block by block: its events, and the few fields beside them that
a report needs.

    blocks ──► up to the last event that seems whole ──► JSON? ──► events
                                                         └ no ──► brackets, commas and strings
                                                              ──► the events that are whole

All else is passed over without making objects of it, so that time grows with the size of a file,
and memory with its longest event: a file may have gigabytes of other fields, or an event that never
ends.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

MAX_EVENT_BYTES = 4 << 20
"""The most bytes of an event: as objects of Python they take thirty times as much memory."""
MAX_FIELD_BYTES = 1 << 16
IN_ARRAY, IN_OBJECT = 1, 2
_NOTHING = re.compile(rb"\s*")
_EVENTS = re.compile(rb'\s*"traceEvents"\s*:\s*')
_FIELD = re.compile(rb'\s*"(?:baseTimeNanoseconds|distributedInfo|lost|block)"\s*:')
"""The beginning of a field that is read."""
_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_BLANK = b" \t\r\n"
_BETWEEN = re.compile(rb"\}\s{0,99}(,)\s{0,99}\{")
"""What stands between two events; also in lists of objects in them."""
NEAR_THE_END = 8192
"""The bytes at the end of a block in which the last comma between two events is looked for."""

_KIND = np.zeros(256, np.int8)
_KIND[[ord(sign) for sign in '"{}[],']] = 1
_STEP = np.zeros(256, np.int64)
_STEP[[ord("{"), ord("[")]] = 1
_STEP[[ord("}"), ord("]")]] = -1


class Signs(NamedTuple):
    """The brackets and commas of a text outside of strings, as columns."""

    offset: NDArray[np.int64]
    sign: NDArray[np.uint8]
    depth: NDArray[np.int64]
    """How many brackets are open behind each."""


class Structure:
    """The structure of a JSON text that comes in blocks: what is a string, and how deep it is
    nested.
    """

    def __init__(self) -> None:
        self.depth = 0
        self.is_in_string = False
        self._is_escaped = False

    def signs(self, block: bytes) -> Signs:
        """The signs of the next block."""
        if self._is_escaped:
            block = b" " + block[1:]
            self._is_escaped = False
        if b"\\" in block:
            block = _ESCAPED.sub(b"  ", block)
            self._is_escaped = block.endswith(b"\\")
        found = np.frombuffer(block, np.uint8)
        offset = np.flatnonzero(_KIND[found])
        sign = found[offset]
        is_quote = sign == ord('"')
        in_string = (np.cumsum(is_quote) + self.is_in_string) % 2 == 1
        if len(offset):
            self.is_in_string = bool(in_string[-1])
        outside = ~in_string & ~is_quote
        offset = offset[outside]
        sign = sign[outside]
        depth = self.depth + np.cumsum(_STEP[sign])
        if len(depth):
            self.depth = int(depth[-1])
        return Signs(offset, sign, depth)


class TraceText:
    """The text of a trace, an array of events or an object that has one, read block by block."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        """The fields of the object that are read."""
        self.has_events = False
        """Whether an array of events began."""
        self.is_whole = False
        """Whether the array or object was closed."""
        self.is_json = True
        """Whether nothing was seen that can't be JSON, but for events."""
        self.remaining = bytearray()
        """The text since the last whole event or field."""
        self.left_out = Counter[str]()
        """The events that were not read, by reason."""
        self._structure = Structure()
        self._level = 0
        """How many brackets are open between two events: one in an array, two in an object; 0
        before the first bracket.
        """
        self._in_events = False
        self._is_too_long = False
        self._unread = b""
        """The text behind the last whole event, which the structure doesn't have yet."""

    @property
    def is_object(self) -> bool:
        """Whether the trace is an object."""
        return self._level == IN_OBJECT

    def add(self, block: bytes) -> Iterator[list[Any]]:
        """Read the next block; the events that it completed."""
        block = self._unread + block
        self._unread = b""
        if (
            self._in_events
            and not self.remaining
            and not self._is_too_long
            and (comma := _last_comma(block))
        ):
            events = from_json(b"[" + block[:comma] + b"]")
            if events is not None:  # a beginning that is JSON ends between two events
                self._unread = block[comma + 1 :]
                yield events
                return
        if not self._level and self.is_json:
            first = block.lstrip(_BLANK)[:1]
            self._level = {b"{": IN_OBJECT, b"[": IN_ARRAY}.get(first, 0)
            self.is_json = not first or self._level > 0
        if self._level and self.is_json:
            yield from self._take_apart(block)
        else:
            self._keep_field(block)

    def finish(self) -> Iterator[list[Any]]:
        """Read what is left at the end of the file."""
        if self._unread:
            block, self._unread = self._unread, b""
            yield from self._take_apart(block)
        if self._in_events and self.remaining and not self.is_object:
            last = from_json(b"[" + self.remaining + b"]")
            if last is not None:
                self.remaining.clear()
                yield last
            else:
                self.left_out["cut off"] += 1

    def _take_apart(self, block: bytes) -> Iterator[list[Any]]:
        offset, sign, depth = self._structure.signs(block)
        opens = (sign == ord("[")) | (sign == ord("{"))
        marks = np.flatnonzero((depth < self._level) | (opens & (depth == self._level)))
        commas = offset[(depth == self._level) & (sign == ord(","))]
        begin = 0
        for end, mark, behind in zip(
            offset[marks].tolist(), sign[marks].tolist(), depth[marks].tolist(), strict=True
        ):
            if self._in_events:
                yield self._events(block, begin, end, commas, is_closed=True)
                self.is_whole = not self.is_object
            else:
                self._keep_field(block[begin:end])
                self._pass(chr(mark), behind)
            begin = end + 1
            if behind < 0:
                self.is_json = False
                return
        if self._in_events:
            yield self._events(block, begin, len(block), commas, is_closed=False)
        else:
            self._keep_field(block[begin:])

    def _events(
        self, block: bytes, begin: int, end: int, commas: NDArray[np.int64], is_closed: bool
    ) -> list[Any]:
        """The events that are whole where this part of the array ends; what follows them is
        kept.
        """
        between = commas[np.searchsorted(commas, begin) : np.searchsorted(commas, end)]
        events: list[Any] = []
        if is_closed or len(between):
            last = end if is_closed else int(between[-1])
            if self._is_too_long:
                begin = int(between[0]) + 1 if len(between) else end
                self._is_too_long = False
            events = self._parse_events(bytes(self.remaining + block[begin:last]))
            self.remaining.clear()
            begin = last + 1
        self._in_events = not is_closed
        self._keep_event(block[begin:end])
        return events

    def _parse_events(self, text: bytes) -> list[Any]:
        """The events of a text that has commas between them, without those that aren't JSON,
        which are counted.
        """
        events = from_json(b"[" + text + b"]")
        if events is None:
            each = [from_json(b"[" + one + b"]") for one in separate_texts(text)]
            self.left_out["not JSON"] += each.count(None)
            events = [event for one in each for event in one or ()]
        return cast("list[Any]", events)

    def _keep_event(self, text: bytes) -> None:
        """Keep the beginning of an event, unless it is too long."""
        if self._is_too_long:
            return
        self.remaining += text if self.remaining else text.lstrip(_BLANK)
        if len(self.remaining) > MAX_EVENT_BYTES:
            self.remaining.clear()
            self._is_too_long = True
            self.left_out[f"longer than {MAX_EVENT_BYTES >> 20} MiB"] += 1

    def _keep_field(self, text: bytes) -> None:
        """Keep the beginning of a field: those that count are short."""
        if len(self.remaining) <= MAX_FIELD_BYTES:
            self.remaining += (text if self.remaining else text.lstrip(_BLANK))[
                : MAX_FIELD_BYTES + 1
            ]

    def _pass(self, sign: str, depth: int) -> None:
        """Pass a sign outside of the array of events, behind which so many brackets are open."""
        before = _EVENTS if self.is_object else _NOTHING
        if sign == "[" and depth == self._level and before.fullmatch(self.remaining):
            self._in_events = self.has_events = True
            self.remaining.clear()
        elif depth == self._level or (depth == 1 and sign in "]}"):
            self._keep_field(sign.encode())
        else:
            self._end_field()
            self.is_whole = depth == 0

    def _end_field(self) -> None:
        """Read the field that ended, if it is one of those that count."""
        field = from_json(b"{" + self.remaining + b"}") if _FIELD.match(self.remaining) else None
        self.fields |= field or {}
        self.remaining.clear()


def _last_comma(text: bytes) -> int:
    """The place of the last comma that seems to stand between two events; 0 if there is none
    near the end.
    """
    found = [match.start(1) for match in _BETWEEN.finditer(text, max(len(text) - NEAR_THE_END, 0))]
    return found[-1] if found else 0


def from_json(text: bytes | bytearray) -> Any:
    """The value of a text in JSON, whose strings may have control characters; None if it isn't
    JSON.
    """
    try:
        return json.loads(text.decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError):
        return None


def separate_texts(text: bytes) -> list[bytes]:
    """The texts of the events between whose texts there are commas."""
    signs = Structure().signs(text)
    commas = signs.offset[(signs.depth == 0) & (signs.sign == ord(","))].tolist()
    return [
        text[begin:end]
        for begin, end in zip(
            [0, *[comma + 1 for comma in commas]], [*commas, len(text)], strict=True
        )
    ]
