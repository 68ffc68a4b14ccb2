"""A program ends while its exporter is far behind: what was sent is whole as a tree, with the real SDK's queue and shutdown."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

PROGRAM = """
import atexit
import sys
import threading
import time

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from otel_recfn import OtelRecordFunctionInstrumentor, record_function
from otel_recfn.session import session
from otel_recfn.support.own_thread import OwnThread

session.EXIT_SECONDS = 1.5
passed, sent = [0.0], threading.Event()
time.monotonic = lambda: passed[0]  # exports alone take time, however fast the machine is
OwnThread.wait_for_end = lambda thread, timeout_s: thread.join(300)


class Slow(SpanExporter):
    def export(self, spans):
        passed[0] += float(sys.argv[1])
        for span in spans:
            print("span", span.context.span_id, span.parent.span_id if span.parent else 0)
        sent.set()
        return SpanExportResult.SUCCESS


def work(depth):
    with record_function(f"depth {depth}"):
        for _ in range(3):
            work(depth - 1) if depth else leaves()


def leaves():
    for _ in range(10):
        with record_function("leaf"):
            pass


def thread():
    with record_function("outer"):
        for _ in range(4):
            work(5)
            time.sleep(0.05)


provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(Slow()))
trace.set_tracer_provider(provider)
instrumentor = OtelRecordFunctionInstrumentor()
atexit.register(lambda: print("abandoned", instrumentor.counters()["spans.abandoned"]))
instrumentor.instrument(roots_per_second=None, span_budget=None)
threads = [threading.Thread(target=thread) for _ in range(2)]
for each in threads:
    each.start()
for each in threads:
    each.join()
sent.wait(300)
"""


@pytest.mark.parametrize("seconds", ["0.02", "0.1"])
def test_no_span_is_without_its_parent(run_program: Callable[..., subprocess.CompletedProcess[str]], seconds: str) -> None:
    printed = [line.split() for line in run_program(PROGRAM, seconds).stdout.splitlines()]
    spans = [(span_id, parent) for what, span_id, *rest in printed if what == "span" for parent in rest]
    there = {span_id for span_id, _ in spans} | {"0"}
    assert len(spans) > 500
    assert next(int(count) for what, count, *_ in printed if what == "abandoned") > 0, "the time was enough"
    assert [parent for _, parent in spans if parent not in there] == []
