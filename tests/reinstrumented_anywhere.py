"""A program whose signal handler changes what is recorded at the Nth line of ours, for one N after the other. Prints what went
wrong: spans without their parent, spans that came twice or not, and what is neither a span nor counted as lost.

    python tests/reinstrumented_anywhere.py reinstrument 1

The last number says every which line is tried.
"""

from __future__ import annotations

import itertools
import logging
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from interruption import Interruption
from otel_recfn import OtelRecordFunctionInstrumentor, profile, record_function
from otel_recfn.recording.recorder import recorder
from patience import PATIENCE_S

HANDLED, EVERY = sys.argv[1], int(sys.argv[2])
logging.getLogger("opentelemetry").setLevel(logging.ERROR)  # it warns of whoever instruments twice
exporter = InMemorySpanExporter()
provider = TracerProvider(shutdown_on_exit=False)
provider.add_span_processor(SimpleSpanProcessor(exporter))
tracer = provider.get_tracer("the program's")
instrumentor = OtelRecordFunctionInstrumentor()
wrong: list[tuple[int, str, str]] = []
missed: list[dict[str, int]] = []
left: list[profile] = []


def instrument() -> None:
    instrumentor.instrument(tracer_provider=provider, roots_per_second=None, modules=False)


def uninstrument() -> None:
    ends = instrumentor.is_instrumented_by_opentelemetry  # else the counters are those that were taken before
    instrumentor.uninstrument()
    if ends:
        missed.append(instrumentor.counters())


def reinstrument() -> None:
    uninstrument()
    instrument()


def profiled() -> None:
    with profile() as prof, record_function("in the handler"):
        pass
    if [event.name for event in prof.events()].count("in the handler") != 1:
        wrong.append((0, "", "the handler's profile is not whole"))


def leave_running() -> None:
    left.append(profile())
    left[0].start()


HANDLERS: dict[str, Callable[[], object]] = {
    "reinstrument": reinstrument,
    "uninstrument": uninstrument,
    "flush": lambda: instrumentor.flush(PATIENCE_S),
    "profile": profiled,
    "left running": leave_running,
}


@contextmanager
def open_elsewhere() -> Iterator[None]:
    """Another thread is in a range, in which another one has ended."""
    opened, over = threading.Lock(), threading.Lock()
    opened.acquire(), over.acquire()

    def work() -> None:
        with record_function("outer elsewhere"):
            with record_function("inner elsewhere"):
                pass
            opened.release()
            over.acquire()

    thread = threading.Thread(target=work)
    thread.start()
    opened.acquire()
    try:
        yield
    finally:
        over.release()
        thread.join()


def work(interruption: Interruption) -> None:
    """Ranges and spans whose children are sent before they end."""
    instrument()
    with open_elsewhere(), tracer.start_as_current_span("request"), record_function("outer"):
        with record_function("inner"):
            pass
        instrumentor.flush(PATIENCE_S)
        with interruption:
            with tracer.start_as_current_span("inside"):
                pass
            instrumentor.flush(PATIENCE_S)
            with profile(), record_function("profiled"):
                pass
            instrumentor.flush(PATIENCE_S)
            uninstrument()
        with tracer.start_as_current_span("afterwards"):
            pass
    uninstrument()


def check(line: int, place: str, recorded: int, lost: int) -> None:
    spans = exporter.get_finished_spans()
    ids = Counter(span.context.span_id for span in spans)
    orphans = [span.name for span in spans if span.parent is not None and span.parent.span_id not in ids]
    wrong.extend([(line, place, f"no parent: {name}") for name in orphans])
    wrong.extend([(line, place, f"came {count} times: {name(spans, one)}") for one, count in ids.items() if count > 1])
    ours = len({span.attributes["recfn.event_id"] for span in spans if "recfn.event_id" in (span.attributes or {})})
    counted = sum([counts.get(f"spans.{name}", 0) for counts in missed for name in LOSSES])
    alone = (
        {0, 1} if HANDLED == "profile" else {0}
    )  # the handler's range is its profile's alone where the program's capture ends
    if recorded - ours - lost - counted not in alone and HANDLED != "uninstrument":
        told = f"{recorded} recorded, {ours} spans, {lost} lost, {counted} counted"
        wrong.append((line, place, f"{told}: {sorted([span.name for span in spans])}"))


LOSSES = ("missed", "failed", "queue_dropped", "abandoned", "no_provider", "suppressed")


def name(spans: tuple[ReadableSpan, ...], one: int) -> str:
    return next(span.name for span in spans if span.context.span_id == one)


def run(line: int) -> bool:
    """Whether there was such a line."""
    before = recorder.counters()
    interruption = Interruption(line, HANDLERS[HANDLED])
    try:
        work(interruption)
    except Exception as error:
        wrong.append((line, interruption.place, repr(error)))
    while left:
        left.pop().stop()
    uninstrument()
    after = recorder.counters()
    lost = sum([getattr(after, one) - getattr(before, one) for one in ("lost_in_drain",)])
    check(line, interruption.place, after.recorded - before.recorded, lost)
    exporter.clear(), missed.clear()
    return bool(interruption.place)


for line in itertools.count(1, EVERY):
    if not run(line):
        break
print(wrong[:10])
