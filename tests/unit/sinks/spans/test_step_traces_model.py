"""Traces of ours that are made of whole batches are those of a plain model that takes one range
after the other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider

from helpers.batches import BASE_NS, MAIN_THREAD, WORKER_THREAD, make_batch
from models.own_traces import Model
from otel_recfn.model.batch import Opened, TrainingStep
from otel_recfn.model.events import EventFlag, EventSource, make_event_id
from otel_recfn.sinks.spans import root_limiter
from otel_recfn.sinks.spans.process_context import ProcessContext
from otel_recfn.sinks.spans.program_spans import ProgramSpans
from otel_recfn.sinks.spans.provider import ProviderResolver
from otel_recfn.sinks.spans.step_trace import TRAINING, StepTrace
from otel_recfn.sinks.spans.step_traces import StepTraces

pytestmark = pytest.mark.one_python
MS = 1_000_000
THREADS = (MAIN_THREAD, WORKER_THREAD)


class Kind(NamedTuple):
    """A kind of outermost range."""

    source: EventSource
    flags: int = 0


KINDS = [
    Kind(EventSource.TORCH),
    Kind(EventSource.TORCH),
    Kind(EventSource.TORCH, EventFlag.BEGINS_STEP),
    Kind(EventSource.MODULE),
    Kind(EventSource.MODULE, EventFlag.BEGINS_STEP),
    Kind(EventSource.MODULE, EventFlag.EVALUATION),
    Kind(EventSource.MODULE, EventFlag.EVALUATION),
    Kind(EventSource.STEP),
    Kind(EventSource.PYTHON_CALL),
]
PAUSES_MS = [0, 0, 0, 1, 99, 101, 999, 1001, 10_001, -500, -20_000]
"""Some in which the clock is set back."""


class Range(NamedTuple):
    """A range begins in a thread, after a pause, and takes a while, or stays open."""

    thread: int
    kind: Kind
    pause_ms: int
    takes_ms: int
    stays_open: bool


ranges = st.builds(
    Range,
    st.sampled_from([0, 0, 0, 1]),
    st.sampled_from(KINDS),
    st.sampled_from(PAUSES_MS),
    st.sampled_from([0, 1, 50]),
    st.sampled_from([False, False, False, True]),
)
work = st.lists(
    st.one_of(
        ranges, ranges, ranges, st.sampled_from(["drain", "end one", "flush", "idle", "step"])
    ),
    max_size=40,
)


class Twins:
    """The traces and their model, which hear the same of a program."""

    def __init__(self, roots_per_second: float | None) -> None:
        target = ProviderResolver(TracerProvider(shutdown_on_exit=False)).resolve()
        assert target is not None
        self.target = target
        self.traces = StepTraces(roots_per_second, ProcessContext(ProgramSpans()))
        self.model = Model(roots_per_second)
        self.finished: list[StepTrace] = []
        self.begun: list[Opened] = []
        self.open: list[int] = []
        self.now_ns, self.steps = BASE_NS, 0
        self._opened: list[Opened] = []
        self._ends: dict[int, int] = {}
        self._steps: list[TrainingStep] = []

    def do(self, what: Any) -> None:
        if isinstance(what, Range):
            self._begin(what)
        elif what == "end one" and self.open:
            self._ends[self.open.pop(0)] = self.now_ns
        elif what == "step" and len(self.begun) > 1:
            self._step()
        elif what == "drain":
            self.drain()
        elif what == "flush":
            self.drain()
            self.traces.end_closed()
            self.model.end_closed()
        elif what == "idle":
            self.drain()
            self.traces.close_idle(self.now_ns)
            self.model.close_idle(self.now_ns)

    def _begin(self, what: Range) -> None:
        self.now_ns += what.pause_ms * MS
        thread = THREADS[what.thread]
        event_id = make_event_id(thread.number, len(self.begun) + 1)
        source, flags = what.kind
        begin = Opened(event_id, "range", source, self.now_ns, what.thread, 0, int(flags))
        self._opened.append(begin)
        self.begun.append(begin)
        self.now_ns += what.takes_ms * MS
        if what.stays_open:
            self.open.append(event_id)
        else:
            self._ends[event_id] = self.now_ns

    def _step(self) -> None:
        """The newest ranges of a thread, that have ended, were a step."""
        thread = self.begun[-1].thread
        mine = [one for one in self.begun if one.thread == thread][-2:]
        ids = [one.event_id for one in mine]
        step = TrainingStep(self.steps, ids[0], ids[-1], mine[0].start_ns, 0, thread, 0)
        self._steps.append(step)
        self.steps += 1

    def drain(self) -> None:
        opened = [
            {
                "event_id": one.event_id,
                "name": one.name,
                "source": one.source,
                "start_ns": one.start_ns,
                "thread": THREADS[one.thread],
                "flags": one.flags,
            }
            for one in self._opened
        ]
        rows = [
            {"event_id": event_id, "thread": THREADS[(event_id >> 40) - 1], "end_ns": end_ns}
            for event_id, end_ns in self._ends.items()
        ]
        batch = replace(make_batch(rows, opened), steps=self._steps)
        self.traces.advance(batch, self.target)
        self.model.advance(self._opened, self._ends, self._steps)
        self.finished += self.traces.take_finished()
        self._opened, self._ends, self._steps = [], {}, []

    def end(self) -> None:
        self.drain()
        self.traces.close_all()
        self.model.close_all()
        self.finished += self.traces.take_finished()


@given(what=work, roots_per_second=st.sampled_from([None, 0.0, 0.3, 1.0, 20.0]))
def test_they_are_the_models(what: list[Any], roots_per_second: float | None) -> None:
    with patch.object(root_limiter, "FIRST_ROOTS", 2):
        twins = Twins(roots_per_second)
    for one in what:
        twins.do(one)
    twins.drain()
    for begin in twins.begun:
        expected = twins.model.traces[begin.event_id]
        found = twins.traces.find(begin.event_id)
        assert (found.first if found is not None else None) == (
            expected.first if expected.is_recorded else None
        )
    twins.end()
    assert sorted(
        (one.first, one.name == TRAINING, one.number, one.start_ns, one.end_ns)
        for one in twins.finished
    ) == sorted(
        (one.first, one.is_training, one.number, one.start_ns, one.end_ns)
        for one in twins.model.complete
    )
