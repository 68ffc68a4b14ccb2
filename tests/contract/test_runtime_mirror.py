"""What mirrors the callbacks elsewhere is told of each change."""

from __future__ import annotations

from typing import Any

import pytest
from runtime_helpers import Notes, in_thread, run_range

from otel_recfn.runtime import thread_locals
from otel_recfn.runtime.callback import RecordFunctionCallback
from otel_recfn.runtime.callback_entries import CallbackEntry
from otel_recfn.runtime.callback_lists import failed, set_mirror
from otel_recfn.runtime.callbacks import (
    add_global_callback,
    add_thread_local_callback,
    clear_callbacks,
    disable_callback,
    has_callbacks,
    reenable_callback,
)
from otel_recfn.runtime.guards import (
    enable_record_function,
)
from otel_recfn.runtime.state import set_record_function_seed_for_testing

pytestmark = pytest.mark.usefixtures("runtime")


class MirrorNotes:
    """A mirror that notes what it is told."""

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

    def switched_thread(self, enabled: bool) -> None:
        self.told.append(("thread is", enabled))

    def carries(self) -> None:
        """See test_state_in_pytorchs_threads.py."""

    def seeded(self, seed: int) -> None:
        self.told.append(("seeded", seed))

    def finish_adding(self) -> None:
        """See the test of its own below."""


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(thread_locals, "_torchs", None)  # an earlier test's: this mirror doesn't switch PyTorch
    mirror, before = MirrorNotes(), set_mirror(None)
    yield mirror
    set_mirror(before)


def test_a_mirror_is_told_of_every_change(mirror: MirrorNotes) -> None:
    set_mirror(mirror)
    mirror.told.clear()
    handle = add_global_callback(RecordFunctionCallback(print))
    disable_callback(handle)
    reenable_callback(handle)
    local = add_thread_local_callback(RecordFunctionCallback(print))
    enable_record_function(False)
    enable_record_function()
    set_record_function_seed_for_testing(7)
    clear_callbacks()
    assert mirror.told == [
        ("added", handle),
        ("switched", handle, False),
        ("switched", handle, True),
        ("thread", [local]),
        ("thread is", False),
        ("thread is", True),
        ("seeded", 7),
        ("removed", handle),
        ("thread", []),
    ]


def test_a_mirror_is_told_of_what_is_there_already(mirror: MirrorNotes) -> None:
    handle = add_global_callback(RecordFunctionCallback(print))
    disable_callback(handle)
    local = add_thread_local_callback(RecordFunctionCallback(print))
    set_mirror(mirror)
    assert mirror.told == [("added", handle), ("switched", handle, False), ("thread", [local])]


def test_a_callback_that_failed_on_the_mirrors_side_runs_nowhere(mirror: MirrorNotes, notes: Notes) -> None:
    handle = add_thread_local_callback(notes.callback())
    set_mirror(mirror)
    failed(handle, ValueError("there"))
    failed(handle, ValueError("there again"))
    run_range("op")
    assert notes == []
    assert not has_callbacks()
    assert [told for told in mirror.told if told[0] == "removed"] == [("removed", handle)]


def test_a_mirror_that_takes_long_holds_nobody_up(mirror: MirrorNotes, notes: Notes, monkeypatch: pytest.MonkeyPatch) -> None:
    changed: list[str] = []

    def meanwhile() -> None:
        handle = add_global_callback(notes.callback())
        disable_callback(handle)
        changed.append("by another thread")

    def finish_adding() -> None:
        monkeypatch.setattr(mirror, "finish_adding", lambda: None)
        in_thread(meanwhile)

    set_mirror(mirror)
    for add in (add_global_callback, add_thread_local_callback):
        monkeypatch.setattr(mirror, "finish_adding", finish_adding)
        add(RecordFunctionCallback(print))
    set_mirror(None)
    monkeypatch.setattr(mirror, "finish_adding", finish_adding)
    set_mirror(mirror)
    assert changed == ["by another thread"] * 3
