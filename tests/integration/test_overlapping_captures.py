"""Profiles start and stop, and the program is instrumented anew, while threads run ranges: no orphan, no parent elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from thoroughness import SOAK

pytestmark = pytest.mark.one_python

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


def test_captures_that_come_and_go_while_ranges_run(run_program: Callable[..., Any]) -> None:
    told = json.loads(run_program(PROGRAM, ROUNDS).stdout)
    assert told["wrong"] == {}
    assert told["spans"] > 100
    assert told["rows"] > 100
