"""Captures begin and end while threads run ranges, and spans inside these: no orphan, no parent elsewhere."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_recfn import OtelRecordFunctionInstrumentor, profile, record_function
from thoroughness import SOAK

ROUNDS = str(25 * SOAK)
PROGRAM = """
import collections, json, random, sys, threading, time
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from otel_recfn import OtelRecordFunctionInstrumentor, RecordScope, profile, record_function
from otel_recfn.recording.recorder import recorder

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
tracer = provider.get_tracer("program")
instrumentor = OtelRecordFunctionInstrumentor()
over = threading.Event()
handed = collections.deque()  # ranges that any thread may end
wrong, turns = collections.Counter(), collections.Counter()

def nest(choose, depth=0):
    for _ in range(choose.randrange(3) if depth < 5 else 0):
        kind = choose.randrange(10)
        if kind < 7:
            with record_function(f"range {depth}"):
                nest(choose, depth + 1)
        elif kind < 9 and len(handed) < 100:
            handed.append(recorder.begin("handed", choose.choice([0, 7]), 1, "", kind == 7))
            nest(choose, depth + 1)
        else:
            end_one()

def end_one():
    try:
        recorder.end(handed.popleft())
    except IndexError:
        pass

def work(seed):
    choose = random.Random(seed)
    while not over.is_set():
        with tracer.start_as_current_span("user"):
            nest(choose)
        with record_function("outside"):
            nest(choose, 3)
        turns[seed] += 1
        time.sleep(0.0005)

def start():
    instrumentor.instrument(tracer_provider=provider, roots_per_second=None)

def check(events):
    by_id = {event.event_id: event for event in events}
    for event in events:
        around = by_id.get(event.parent)
        wrong["orphans in profiles"] += event.parent != 0 and around is None
        if around is not None or not event.parent:
            wrong["roots in profiles"] += event.root != (around.root if around else event.event_id)
    return len(events)

def switch(rounds):
    choose, rows = random.Random(0), 0
    for _ in range(rounds):
        prof = profile(scopes=choose.choice([None, {RecordScope.USER_SCOPE}, {RecordScope.FUNCTION}]))
        prof.start()
        time.sleep(0.03 * choose.random())
        begun = sum(turns.values())
        while sum(turns.values()) < begun + 4:  # so that one of three threads began a turn in it, and ended it
            time.sleep(0.001)
        if choose.random() < 0.4:
            instrumentor.uninstrument()
            time.sleep(0.01 * choose.random())
            start()
        prof.stop()
        rows += check(prof.events())
    return rows

start()
threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
for thread in threads:
    thread.start()
rows = switch(int(sys.argv[1]))
over.set()
for thread in threads:
    thread.join()
while handed:
    end_one()
assert instrumentor.flush(300)
instrumentor.uninstrument()
spans = exporter.get_finished_spans()
traces = {span.context.span_id: span.context.trace_id for span in spans}
for span in spans:
    if span.parent is not None:
        wrong["orphans"] += span.parent.span_id not in traces
        wrong["parents in another trace"] += traces.get(span.parent.span_id, span.context.trace_id) != span.context.trace_id
wrong["spans that came twice"] = len(spans) - len(traces)
print(json.dumps({"spans": len(spans), "rows": rows, "wrong": +wrong}))
"""


@pytest.mark.one_python
def test_captures_that_come_and_go_while_ranges_run(run_program: Callable[..., Any]) -> None:
    told = json.loads(run_program(PROGRAM, ROUNDS).stdout)
    assert told["wrong"] == {}
    assert told["spans"] > 100
    assert told["rows"] > 100


RANGE, SPAN, PROFILE, SWITCH, END, END_OLDEST_RANGE = "RSPIxo"


class Program:
    """Opens and ends what the letters say: the last that was opened first, but for the instrumentation and oldest ranges."""

    def __init__(self, instrumentor: OtelRecordFunctionInstrumentor) -> None:
        self.exporter, self.instrumentor = InMemorySpanExporter(), instrumentor
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def run(self, letters: str) -> None:
        opened: list[tuple[str, ExitStack]] = []
        for letter in letters:
            if letter == SWITCH:
                self.switch()
            elif letter == END_OLDEST_RANGE:
                for oldest in [each for each in opened if each[0] == RANGE][:1]:
                    opened.remove(oldest)
                    oldest[1].close()
            elif letter != END:
                opened.append((letter, ExitStack()))
                opened[-1][1].enter_context(self.made(letter))
            elif opened:
                opened.pop()[1].close()
        while opened:
            opened.pop()[1].close()
        if self.instrumentor.is_instrumented_by_opentelemetry:
            self.switch()

    def made(self, letter: str) -> Any:
        if letter == SPAN:
            return self.provider.get_tracer("program").start_as_current_span("span")
        return record_function("range") if letter == RANGE else profile()

    def switch(self) -> None:
        if self.instrumentor.is_instrumented_by_opentelemetry:
            self.instrumentor.uninstrument()
        else:
            self.instrumentor.instrument(tracer_provider=self.provider, span_budget=None, roots_per_second=None)

    def orphans(self) -> list[str]:
        spans = self.exporter.get_finished_spans()
        there = {(span.context.trace_id, span.context.span_id) for span in spans}
        return [span.name for span in spans if span.parent and (span.parent.trace_id, span.parent.span_id) not in there]


@pytest.fixture
def program(instrumentor: OtelRecordFunctionInstrumentor) -> Iterator[Program]:
    made = Program(instrumentor)
    yield made
    made.provider.shutdown()


@pytest.mark.parametrize(
    "letters", ["PRIRS", "PRIRRSxS", "PRIRxRS", "PRPIxRS", "PRISRS", "PRRIRSxxRS", "PRIRoS", "PRIRRoS", "PRRIRRoooS"]
)
def test_where_the_outermost_range_is_older_than_the_instrumentation(program: Program, letters: str) -> None:
    program.run(letters)
    assert program.orphans() == []


def test_a_generators_range_that_is_older_than_the_instrumentation(program: Program) -> None:
    """It is entered again with each step."""

    @record_function("older")
    def steps() -> Iterator[None]:
        yield
        with program.made(SPAN):
            yield

    with profile():
        generator = steps()
        next(generator)
        program.switch()
        next(generator)
        generator.close()
    program.switch()
    assert [span.name for span in program.exporter.get_finished_spans()] == ["span"]
    assert program.orphans() == []


def test_in_any_program(instrumentor: OtelRecordFunctionInstrumentor) -> None:
    for seed in range(100 * SOAK):
        choice = random.Random(seed)
        letters = "".join(choice.choices("RRRSSPPIIxxoo", k=choice.randrange(3, 12)))
        program = Program(instrumentor)
        program.run(letters)
        program.provider.shutdown()
        assert program.orphans() == [], letters
