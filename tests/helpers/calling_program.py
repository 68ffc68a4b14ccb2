"""Programs for the tracer of Python calls, which note themselves what they call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from helpers.running_capture import Running
from otel_recfn.batches.selection import RECORD_FUNCTIONS, Selected
from otel_recfn.model.batch import Batch, Event
from otel_recfn.model.events import EventSource
from otel_recfn.model.python_calls import ALL_CALLS, PythonCalls
from otel_recfn.recording.recorder import Recorder
from otel_recfn.session.session import Session
from otel_recfn.support.code_names import called_code

WITH_CALLS = Selected(sources=RECORD_FUNCTIONS | {EventSource.PYTHON_CALL})


def selected_calls(calls: PythonCalls) -> Selected:
    """What a capture asks for that sees these calls."""
    return replace(WITH_CALLS, calls=calls)


class Node(NamedTuple):
    """A call or range, and what lies in it."""

    name: str
    below: tuple[Node, ...] = ()


class Traced:
    """A session whose capture sees Python calls while a program runs."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._session = Session(recorder)

    def run(self, program: Callable[[], Any], calls: PythonCalls = ALL_CALLS) -> list[Event]:
        """The rows."""
        running = self.begin(calls)
        try:
            with suppress(Stop):
                program()
        finally:
            running.stop()
        return list(running.sink.events())

    def begin(self, calls: PythonCalls = ALL_CALLS) -> Running:
        """A capture that sees these calls from now on."""
        return Running(self._session, selected_calls(calls))

    def drain(self) -> Batch:
        """With the open ranges, past the captures."""
        # Drains are made one at a time, and the session's thread makes some.
        with self._session._draining.locked():  # noqa: SLF001
            return self._recorder.drain(open_ranges=True)

    def close(self) -> None:
        self._session.at_exit()


class Stop(BaseException):
    """What programs raise."""


def tree(rows: list[Event], top: str, named: Callable[[Event], str] | None = None) -> list[Node]:
    """The calls of the functions named ``top``, and what lies in each, in the order of their
    begins; ``named``: as what.
    """
    name_of = named or short
    below: dict[int, list[Event]] = {}
    for row in sorted(rows, key=lambda row: row.event_id):
        below.setdefault(row.parent, []).append(row)

    def node(row: Event) -> Node:
        return Node(name_of(row), tuple(node(child) for child in below.get(row.event_id, [])))

    return [node(row) for row in sorted(rows, key=lambda row: row.event_id) if short(row) == top]


def by_end(rows: list[Event]) -> list[Event]:
    """In the order in which they ended."""
    return sorted(rows, key=lambda row: (row.end_ns, -row.event_id))


def short(row: Event) -> str:
    """The name of the function or of the range."""
    return called_code(row.name).function


def with_line(row: Event) -> str:
    """The name of the function, and the line from which the call goes on."""
    code = called_code(row.name)
    return f"{code.line} {code.function}" if code.line else code.function


def call(action: Action) -> None:
    """Do what an action says, in a function of its own."""
    kind, inner = action
    FORMS[kind](inner)


def plain(inner: list[Action]) -> None:
    for action in inner:
        call(action)


def swallowing(inner: list[Action]) -> None:
    try:
        for action in inner:
            call(action)
    except Stop:
        pass


def raising(inner: list[Action]) -> None:
    for action in inner:
        call(action)
    raise Stop


def in_c(inner: list[Action]) -> None:
    list(map(call, inner))


def in_failing_c(inner: list[Action]) -> None:
    for action in inner:
        call(action)
    with suppress(ValueError):
        int("no number")
    "a".join([])


def looping(inner: list[Action]) -> None:
    for _ in generated(inner):
        pass


def generated(inner: list[Action]) -> Iterator[None]:
    for action in inner:
        call(action)
        yield


def leaving_a_generator(inner: list[Action]) -> None:
    generator = generated(inner)
    next(generator, None)
    generator.close()


Action = tuple[str, list[Any]]
FORMS: dict[str, Callable[[list[Action]], None]] = {
    form.__name__: form
    for form in (plain, swallowing, raising, in_c, in_failing_c, looping, leaving_a_generator)
}
