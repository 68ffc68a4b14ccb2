"""Python's collector of cycles, kept from looking at millions of new objects again and again while they are made."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collections() -> Iterator[None]:
    """No automatic collection in this process meanwhile: a few seconds at most, in which nothing becomes a cycle."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
