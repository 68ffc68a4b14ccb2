"""Lists of callbacks. They are tuples, replaced and never changed, so that an open range keeps the list that it began with."""

from __future__ import annotations

from operator import attrgetter
from typing import NamedTuple, TypeAlias

from otel_recfn.runtime.callback import RecordFunctionCallback


class CallbackEntry(NamedTuple):
    """A callback as it was when it was added: changing the object afterwards changes nothing."""

    callback: RecordFunctionCallback
    handle: int
    """Unique in the process; callbacks run in its order."""
    enabled: bool = True


Entries: TypeAlias = tuple[CallbackEntry, ...]
_BY_HANDLE = attrgetter("handle")


def with_entry(entries: Entries, entry: CallbackEntry) -> Entries:
    """The list with one more entry, in the order of handles."""
    return tuple(sorted((*entries, entry), key=_BY_HANDLE))


def without(entries: Entries, handle: int) -> Entries:
    """The list without the entry with this handle."""
    return tuple([entry for entry in entries if entry.handle != handle])


def switched(entries: Entries, handle: int, enabled: bool) -> Entries:
    """The list with the entry with this handle enabled or disabled."""
    return tuple([entry._replace(enabled=enabled) if entry.handle == handle else entry for entry in entries])


def has(entries: Entries, handle: int) -> bool:
    """Whether one has this handle."""
    return any(entry.handle == handle for entry in entries)


def any_enabled(entries: Entries) -> bool:
    """Whether one is enabled."""
    return any(entry.enabled for entry in entries)
