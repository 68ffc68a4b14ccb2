"""Dictionaries of the most recent entries, so that what a program goes on making takes bounded
memory.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import islice
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


def remember(values: dict[Key, Value], key: Key, value: Value, limit: int) -> None:
    """Insert a value as the most recent one; above the limit, the oldest quarter is evicted.

    From any thread.
    """
    values.pop(key, None)
    values[key] = value
    if len(values) > limit:
        # One at a time would look through all that went before.
        for oldest in list(islice(values, limit // 4 + 1)):
            values.pop(oldest, None)
