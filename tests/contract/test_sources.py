"""A source of one's own in a session's list: when it is enabled, with what, and what becomes of
it when it fails.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers import source_calls
from helpers.running_capture import Running
from helpers.timeouts import PATIENCE_S
from otel_recfn.batches.selection import RECORD_FUNCTIONS, Selected
from otel_recfn.model.events import EventSource, Extra, RecordScope
from otel_recfn.recording.recorder import Recorder
from otel_recfn.session.session import Session
from otel_recfn.sources.protocol import Source, Wanted

FUNCTION = 1 << RecordScope.FUNCTION
USER = 1 << RecordScope.USER_SCOPE
WITH_MODULES = RECORD_FUNCTIONS | {EventSource.MODULE}


class Ticks(Source):
    """Announces a range when it is told to, as long as it is enabled, and notes what it is asked
    for.
    """

    announces: EventSource | None = EventSource.MODULE

    def __init__(self, recorder: Recorder, name: str = "ticks", needs: str | None = None) -> None:
        self.recorder, self.name, self.needs = recorder, name, needs
        self.can_be_had = True
        self.notes: list[Wanted | None] = []

    def prepare(self) -> bool:
        return self.can_be_had

    def enable(self, wanted: Wanted) -> None:
        self.notes.append(wanted)

    def disable(self) -> None:
        self.notes.append(None)

    @property
    def enabled(self) -> bool:
        return bool(self.notes) and self.notes[-1] is not None

    def tick(self) -> None:
        if self.enabled:
            source_calls.end(source_calls.begin("tick", RecordScope.FUNCTION, EventSource.MODULE))


class Broken(Ticks):
    """Fails in one of its methods."""

    fails_in = ""

    def prepare(self) -> bool:
        return self.fail_in("prepare") or super().prepare()

    def enable(self, wanted: Wanted) -> None:
        super().enable(wanted)
        self.fail_in("enable")

    def disable(self) -> None:
        super().disable()
        self.fail_in("disable")

    def fail_in(self, method: str) -> bool:
        if method == self.fails_in:
            raise ValueError(f"of the source's own in {method}")
        return False


Sessions = Callable[..., Session]


@pytest.fixture
def session_of(recorder: Recorder) -> Iterator[Sessions]:
    made: list[Session] = []

    def session_of(*sources: Ticks) -> Session:
        made.append(Session(recorder, sources))
        return made[-1]

    yield session_of
    for session in made:
        session.at_exit()


@pytest.fixture
def late_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module that nobody has imported yet."""
    name = f"recfn_late_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


def test_it_is_enabled_while_a_capture_asks_for_its_rows(
    recorder: Recorder, session_of: Sessions
) -> None:
    ticks = Ticks(recorder)
    session = session_of(ticks)
    without = Running(session, Selected())
    assert ticks.notes == []
    asking = Running(session, Selected(sources=WITH_MODULES))
    ticks.tick()
    asking.stop()
    assert not ticks.enabled
    ticks.tick()
    assert (without.stop().names(), asking.names()) == ([], ["tick"])


def test_a_source_is_notified_when_the_captures_together_want_something_else(
    recorder: Recorder, session_of: Sessions
) -> None:
    ticks = Ticks(recorder)
    session = session_of(ticks)
    first = Running(session, Selected(FUNCTION, Extra.SHAPES, WITH_MODULES))
    second = Running(session, Selected(USER, Extra.STACK, profiler=3))
    first_alone = Wanted(FUNCTION, Extra.SHAPES, WITH_MODULES)
    assert ticks.notes == [
        first_alone,
        Wanted(FUNCTION | USER, Extra.SHAPES | Extra.STACK, WITH_MODULES, profilers=True),
    ]
    third = Running(session, Selected(USER))
    third.stop()
    assert len(ticks.notes) == 2  # the same
    second.stop()
    first.stop()
    assert ticks.notes[2:] == [first_alone, None]


def test_one_that_needs_a_module_waits_for_its_import(
    recorder: Recorder, session_of: Sessions, late_module: str
) -> None:
    waits = Ticks(recorder, "waits", late_module)
    ready = Ticks(recorder, "ready")
    session = session_of(waits, ready)
    gone = Running(session, Selected(sources=WITH_MODULES)).stop()
    running = Running(session, Selected(sources=WITH_MODULES))
    assert (waits.enabled, ready.enabled) == (False, True)
    importlib.import_module(late_module)
    assert waits.enabled
    waits.tick()
    running.stop()
    assert (running.names(), gone.names()) == (["tick"], [])
    assert len(waits.notes) == 2  # the first capture's wait was called off


@pytest.mark.parametrize("method", ["prepare", "enable", "disable"])
def test_one_that_fails_is_disabled_and_told_once_and_the_others_go_on(
    recorder: Recorder, session_of: Sessions, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    broken = Broken(recorder, "broken")
    other = Ticks(recorder, "other")
    session = session_of(broken, other)
    broken.fails_in = method
    for _ in range(2):
        running = Running(session, Selected(sources=WITH_MODULES))
        other.tick()
        assert running.stop().names() == ["tick"]
    assert not broken.enabled
    assert (
        caplog.text.count("the source 'broken' failed and is used no more; the others go on") == 1
    )


def test_nobody_who_forks_waits_while_one_is_prepared(
    recorder: Recorder, session_of: Sessions
) -> None:
    preparing = threading.Event()
    go_on = threading.Event()

    class Slow(Ticks):
        def prepare(self) -> bool:
            preparing.set()
            return go_on.wait(PATIENCE_S)

    session = session_of(Slow(recorder))
    starter = threading.Thread(target=lambda: Running(session, Selected(sources=WITH_MODULES)))
    starter.start()
    assert preparing.wait(PATIENCE_S)
    Running(session, Selected()).stop()  # takes the locks that a fork takes
    go_on.set()
    starter.join(PATIENCE_S)
