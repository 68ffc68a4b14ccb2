"""What repeats the callbacks on PyTorch's operators is told of each change."""

from __future__ import annotations

from typing import Any

import pytest
from runtime_helpers import Notes, in_thread, run_range

from otel_recfn.callbacks import registry
from otel_recfn.callbacks.callback import CallbackEntry, RecordFunctionCallback
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

pytestmark = pytest.mark.usefixtures("runtime")


class TorchNotes:
    """Notes what TorchCallbacks are told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def added(self, entry: CallbackEntry) -> None:
        self.told.append(("added", entry.handle))

    def removed(self, handle: int) -> None:
        self.told.append(("removed", handle))

    def switched(self, handle: int, enabled: bool) -> None:
        self.told.append(("switched", handle, enabled))

    def thread_changed(self, entries: tuple[CallbackEntry, ...]) -> None:
        self.told.append(("thread", [entry.handle for entry in entries]))

    def seeded(self, seed: int) -> None:
        self.told.append(("seeded", seed))

    def finish_adding(self) -> None:
        """See the test of its own below."""


@pytest.fixture
def torch_notes(monkeypatch: pytest.MonkeyPatch) -> TorchNotes:
    made = TorchNotes()
    monkeypatch.setattr(registry, "_torch_callbacks", made)
    return made


def test_every_change_is_told(torch_notes: TorchNotes) -> None:
    handle = add_global_callback(RecordFunctionCallback(print))
    disable_callback(handle)
    reenable_callback(handle)
    local = add_thread_local_callback(RecordFunctionCallback(print))
    set_record_function_seed_for_testing(7)
    clear_callbacks()
    assert torch_notes.told == [
        ("added", handle),
        ("switched", handle, False),
        ("switched", handle, True),
        ("thread", [local]),
        ("seeded", 7),
        ("removed", handle),
        ("thread", []),
    ]


def test_a_callback_that_failed_on_an_operator_runs_nowhere(torch_notes: TorchNotes, notes: Notes) -> None:
    handle = add_thread_local_callback(notes.callback())
    failed(handle, ValueError("there"))
    failed(handle, ValueError("there again"))
    run_range("op")
    assert notes == []
    assert not has_callbacks()
    assert [told for told in torch_notes.told if told[0] == "removed"] == [("removed", handle)]


def test_a_library_that_loads_slowly_holds_nobody(
    torch_notes: TorchNotes, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed: list[str] = []

    def meanwhile() -> None:
        handle = add_global_callback(notes.callback())
        disable_callback(handle)
        changed.append("by another thread")

    def finish_adding() -> None:
        monkeypatch.setattr(torch_notes, "finish_adding", lambda: None)
        in_thread(meanwhile)

    for add in (add_global_callback, add_thread_local_callback):
        monkeypatch.setattr(torch_notes, "finish_adding", finish_adding)
        add(RecordFunctionCallback(print))
    assert changed == ["by another thread"] * 2
