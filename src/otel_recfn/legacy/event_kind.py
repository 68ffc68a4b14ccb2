"""The kinds of a legacy event."""

from __future__ import annotations

from enum import IntEnum


class EventKind(IntEnum):
    """What happened. The values are PyTorch's."""

    MARK = 0
    PUSH_RANGE = 1
    POP_RANGE = 2
    MEMORY_ALLOC = 3


KIND_WORDS = {
    EventKind.MARK: "mark",
    EventKind.PUSH_RANGE: "push",
    EventKind.POP_RANGE: "pop",
    EventKind.MEMORY_ALLOC: "memory_alloc",
}
