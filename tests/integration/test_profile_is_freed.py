"""What a profile kept goes with it, or with the next one, and not when the garbage collector
comes by.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from otel_recfn import profile, record_function


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def profile_store() -> weakref.ref[object]:
    with profile() as prof, record_function("range"):
        pass
    assert prof.events()
    return weakref.ref(prof._recording.store)  # noqa: SLF001 - what must be freed, and nobody is given


@pytest.mark.usefixtures("no_collection")
def test_alone() -> None:
    assert profile_store()() is None


@pytest.mark.usefixtures("no_collection")
def test_beside_another() -> None:
    with profile(), record_function("around"):
        first = profile_store()
        profile_store()
        assert first() is None
