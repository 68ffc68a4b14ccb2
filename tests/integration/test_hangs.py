"""A program that hangs and is killed: what it was in is in its Chrome trace, and was sent as spans."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trace_files import events_in

pytestmark = pytest.mark.one_python

PROGRAM = """
import gzip, os, signal, sys, threading, time
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
from otel_recfn import OtelRecordFunctionInstrumentor, record_function
from otel_recfn.sinks.in_memory import InMemorySink

told = threading.Event()


class Tells(InMemorySink):
    def write(self, batch):
        super().write(batch)
        if batch.long_open is not None and len(batch.long_open) == 3:
            told.set()


def line(span):
    parent = format(span.parent.span_id, "x") if span.parent else ""
    return f"{span.name} {format(span.context.span_id, 'x')} {parent}\\n"


provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter(formatter=line), schedule_delay_millis=10))
OtelRecordFunctionInstrumentor().instrument(tracer_provider=provider, chrome_trace=sys.argv[1], sinks=[Tells()])
with provider.get_tracer("program").start_as_current_span("request"):
    with record_function("train"), record_function("step"), record_function("hangs"):
        assert told.wait(300)
        while not provider.force_flush() or OtelRecordFunctionInstrumentor().counters()["exported"] < 4:
            time.sleep(0.01)
        while b"hangs" not in gzip.decompress(open(sys.argv[1], "rb").read()):  # its own thread writes it
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_program_hung_in_is_known(
    run_program: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    trace = tmp_path / "trace.json.gz"
    environment: dict[str, Any] = {"OTEL_RECFN_OPEN_RANGE_S": "0.05"}
    done = run_program(PROGRAM, str(trace), code=-signal.SIGKILL, **environment)
    slices = {event["name"]: event for event in events_in(trace, "X")}
    request = slices.pop("request")
    assert list(slices) == ["train", "step", "hangs"]
    assert request["ts"] <= slices["train"]["ts"]  # the program's own span, around all of them
    assert all(event["args"]["Partial"] and event["dur"] >= 50_000 for event in slices.values())
    spans = [line.split(" ") for line in done.stdout.replace("open for long", "root").splitlines()]
    assert [name for name, _, _ in spans] == ["root", "train", "step", "hangs"]
    assert [parent for _, _, parent in spans] == ["", *[own for _, own, _ in spans[:3]]]
