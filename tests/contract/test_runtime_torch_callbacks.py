"""The library that repeats the callbacks on PyTorch's operators is told of each change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from runtime_helpers import Notes, in_thread, run_range

from otel_recfn.callbacks import torch_callbacks
from otel_recfn.callbacks.callback import RecordFunctionCallback
from otel_recfn.callbacks.registry import (
    add_global_callback,
    add_thread_local_callback,
    clear_callbacks,
    disable_callback,
    failed,
    has_callbacks,
    reenable_callback,
)
from otel_recfn.callbacks.state import set_record_function_seed_for_testing
from otel_recfn.callbacks.torch_callbacks import TorchCallbacks

pytestmark = pytest.mark.usefixtures("runtime")


class LibraryNotes:
    """Stands for the library, and notes what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def add(self, handle: int, is_global: bool, *_callback: object) -> bool:
        self.told.append(("add", handle, is_global))
        return True

    def __getattr__(self, function: str) -> Callable[..., None]:
        return lambda *arguments: self.told.append((function, *arguments))


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> LibraryNotes:
    made = LibraryNotes()
    monkeypatch.setattr(torch_callbacks, "_library", made)
    return made


def test_every_change_is_told(library: LibraryNotes) -> None:
    handle = add_global_callback(RecordFunctionCallback(print))
    disable_callback(handle)
    reenable_callback(handle)
    local = add_thread_local_callback(RecordFunctionCallback(print))
    set_record_function_seed_for_testing(7)
    clear_callbacks()
    assert library.told == [
        ("add", handle, True),
        ("switch_global", handle, False),
        ("switch_global", handle, True),
        ("set_thread", (local,)),  # those that it knows already
        ("add", local, False),
        ("set_thread", (local,)),
        ("seed", 7),
        ("remove", handle),
        ("set_thread", ()),
    ]


def test_the_place_of_a_threads_callback_is_given_away_once_no_thread_has_it(library: LibraryNotes) -> None:
    handle = add_thread_local_callback(RecordFunctionCallback(print))
    clear_callbacks()
    library.told.clear()
    add_thread_local_callback(RecordFunctionCallback(print))
    assert [told for told in library.told if told[0] == "remove"] == [("remove", handle)]


def test_a_callback_that_failed_on_an_operator_runs_nowhere(library: LibraryNotes, notes: Notes) -> None:
    handle = add_thread_local_callback(notes.callback())
    failed(handle, ValueError("there"))
    failed(handle, ValueError("there again"))
    run_range("op")
    assert notes == []
    assert not has_callbacks()
    assert [told for told in library.told if told[0] == "fail"] == [("fail", handle)]


def test_a_library_that_loads_slowly_holds_nobody(notes: Notes, monkeypatch: pytest.MonkeyPatch) -> None:
    changed: list[str] = []

    def meanwhile() -> None:
        handle = add_global_callback(notes.callback())
        disable_callback(handle)
        changed.append("by another thread")

    def finish_adding(_callbacks: object) -> None:
        monkeypatch.setattr(TorchCallbacks, "finish_adding", lambda _callbacks: None)
        in_thread(meanwhile)

    for add in (add_global_callback, add_thread_local_callback):
        monkeypatch.setattr(TorchCallbacks, "finish_adding", finish_adding)
        add(RecordFunctionCallback(print))
    assert changed == ["by another thread"] * 2
