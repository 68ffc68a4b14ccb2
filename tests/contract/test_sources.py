"""A source of one's own in a session's list: when it is enabled, with what, and what becomes of it when it fails."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from otel_recfn.batches.selection import RECORD_FUNCTIONS, Selected
from otel_recfn.model.events import ALL_SCOPES_MASK, EventSource, Extra, RecordScope
from otel_recfn.recording.recorder import Recorder
from otel_recfn.session import Session
from otel_recfn.sources.protocol import Source, Wanted
from patience import PATIENCE_S
from running_capture import Running

FUNCTION, USER = 1 << RecordScope.FUNCTION, 1 << RecordScope.USER_SCOPE
WITH_MODULES = RECORD_FUNCTIONS | {EventSource.MODULE}


class Ticks(Source):
    """Announces a range when it is told to, as long as it is enabled, and notes what it is asked for."""

    announces: EventSource | None = EventSource.MODULE

    def __init__(self, recorder: Recorder, name: str = "ticks", needs: str | None = None) -> None:
        self.recorder, self.name, self.needs = recorder, name, needs
        self.can_be_had = True
        self.told: list[Wanted | None] = []

    def prepare(self) -> bool:
        return self.can_be_had

    def enable(self, wanted: Wanted) -> None:
        self.told.append(wanted)

    def disable(self) -> None:
        self.told.append(None)

    @property
    def enabled(self) -> bool:
        return bool(self.told) and self.told[-1] is not None

    def tick(self) -> None:
        if self.enabled:
            self.recorder.end(self.recorder.begin("tick", RecordScope.FUNCTION, EventSource.MODULE))


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


def test_it_is_enabled_while_a_capture_asks_for_its_rows(recorder: Recorder, session_of: Sessions) -> None:
    ticks = Ticks(recorder)
    session = session_of(ticks)
    without = Running(session, Selected())
    assert ticks.told == []
    asking = Running(session, Selected(sources=WITH_MODULES))
    ticks.tick()
    asking.stop()
    assert not ticks.enabled
    ticks.tick()
    assert (without.stop().names(), asking.names()) == ([], ["tick"])


def test_it_is_told_what_the_captures_want_together_whenever_that_changes(recorder: Recorder, session_of: Sessions) -> None:
    ticks = Ticks(recorder)
    session = session_of(ticks)
    first = Running(session, Selected(FUNCTION, Extra.SHAPES, WITH_MODULES))
    second = Running(session, Selected(USER, Extra.STACK, profiler=3))
    first_alone = Wanted(FUNCTION, Extra.SHAPES, WITH_MODULES)
    assert ticks.told == [first_alone, Wanted(FUNCTION | USER, Extra.SHAPES | Extra.STACK, WITH_MODULES, profilers=True)]
    third = Running(session, Selected(USER))
    third.stop()
    assert len(ticks.told) == 2  # the same
    second.stop()
    first.stop()
    assert ticks.told[2:] == [first_alone, None]


def test_its_rows_are_in_the_last_drain_before_it_is_disabled(recorder: Recorder, session_of: Sessions) -> None:
    ticks = Ticks(recorder)
    running = Running(session_of(ticks), Selected(sources=WITH_MODULES))
    ticks.tick()
    recorder.begin("open", RecordScope.FUNCTION, EventSource.MODULE)
    assert running.stop().names() == ["tick", "open"]


def test_one_without_rows_serves_every_capture(recorder: Recorder, session_of: Sessions) -> None:
    serves = Ticks(recorder)
    serves.announces = None
    running = Running(session_of(serves), Selected(sources=frozenset({EventSource.RECORD_FUNCTION})))
    assert serves.enabled
    running.stop()
    assert not serves.enabled


def test_one_that_needs_a_module_waits_for_its_import(recorder: Recorder, session_of: Sessions, late_module: str) -> None:
    waits, ready = Ticks(recorder, "waits", late_module), Ticks(recorder, "ready")
    session = session_of(waits, ready)
    gone = Running(session, Selected(sources=WITH_MODULES)).stop()
    running = Running(session, Selected(sources=WITH_MODULES))
    assert (waits.enabled, ready.enabled) == (False, True)
    importlib.import_module(late_module)
    assert waits.enabled
    waits.tick()
    running.stop()
    assert (running.names(), gone.names()) == (["tick"], [])
    assert len(waits.told) == 2  # the first capture's wait was called off


def test_all_that_takes_long_is_done_before_one_is_enabled(recorder: Recorder, session_of: Sessions) -> None:
    """The tracer of Python calls would trace what the others call to prepare themselves."""
    seen: list[tuple[str, bool]] = []

    class Slow(Ticks):
        def prepare(self) -> bool:
            seen.append((self.name, first.enabled or recorder.recording))
            return True

    first = Ticks(recorder, "first")
    slow = [Slow(recorder, "slow"), Slow(recorder, "with sys", needs="sys")]
    running = Running(session_of(first, *slow), Selected(sources=WITH_MODULES))
    assert seen == [("slow", False), ("with sys", False)]
    assert slow[1].enabled
    running.stop()


def test_one_that_cannot_be_had_is_not_enabled(recorder: Recorder, session_of: Sessions) -> None:
    lacking, other = Ticks(recorder, "lacking"), Ticks(recorder, "other")
    lacking.can_be_had = False
    Running(session_of(lacking, other), Selected(sources=WITH_MODULES)).stop()
    assert lacking.told == []
    assert other.told == [Wanted(ALL_SCOPES_MASK, sources=WITH_MODULES), None]


@pytest.mark.parametrize("method", ["prepare", "enable", "disable"])
def test_one_that_fails_is_disabled_and_told_once_and_the_others_go_on(
    recorder: Recorder, session_of: Sessions, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    broken, other = Broken(recorder, "broken"), Ticks(recorder, "other")
    session = session_of(broken, other)
    broken.fails_in = method
    for _ in range(2):
        running = Running(session, Selected(sources=WITH_MODULES))
        other.tick()
        assert running.stop().names() == ["tick"]
    assert not broken.enabled
    assert caplog.text.count("the source 'broken' failed and is used no more; the others go on") == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_goes_on_with_it(recorder: Recorder, session_of: Sessions) -> None:
    ticks = Ticks(recorder)
    running = Running(session_of(ticks), Selected(sources=WITH_MODULES))
    pid = os.fork()
    if pid == 0:
        ticks.tick()
        ended = (
            running.session.flush(running.capture, PATIENCE_S) and running.session.counters(running.capture)["recorded"] == 1
        )
        os._exit(0 if ended and ticks.enabled else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    running.stop()


def test_a_capture_without_record_function_has_none_of_its_ranges(recorder: Recorder, session_of: Sessions) -> None:
    ticks = Ticks(recorder)
    running = Running(session_of(ticks), Selected(sources=frozenset({EventSource.MODULE})))
    with recorder.record_function("theirs"):
        ticks.tick()
    (tick,) = running.stop().sink.events()
    assert (tick.name, tick.parent) == ("tick", 0)


def test_nobody_who_forks_waits_while_one_is_prepared(recorder: Recorder, session_of: Sessions) -> None:
    preparing, go_on = threading.Event(), threading.Event()

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
