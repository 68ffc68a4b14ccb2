"""Lets allocations fail at random in all threads of an observed program, again and again, and
checks that the program notices nothing, that recording goes on, and that all is counted once.

    python tests/soak/memory_soak.py --runs 100 --seconds 3 --seed 1

The n-th run has the n-th seed from ``--seed`` on; which allocations fail also depends on when
threads come to run, so a run that failed may have to be repeated. The exit code is 1 where one
failed. For glibc; it compiles a library with ``cc``.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from otel_recfn import (
    InMemorySink,
    OtelRecordFunctionInstrumentor,
    _native,
    profile,
    record_function,
)

LIBRARY = Path(__file__).parents[1] / "helpers" / "failing_allocations.c"
ONE_IN, SMALLEST = 20, 512
"""One of so many allocations fails, of so many bytes at least: CPython itself doesn't bear it where
smaller ones do.
"""
SMALLEST_OF_PROGRAM = 4096
PATIENCE_S = 60.0
REASONS = ("queue_full", "shutdown", "error")
TRACE = Path("trace.json")


class Discards(SpanExporter):
    """Takes spans, and needs no memory for it."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


class Program:
    """An observed program."""

    def __init__(self) -> None:
        provider = TracerProvider(shutdown_on_exit=False)
        # Not in batches: a thread of the SDK's would end if it found no memory.
        provider.add_span_processor(SimpleSpanProcessor(Discards()))
        self._tracer = provider.get_tracer("program")
        self.sink = InMemorySink(10_000_000)
        self.instrumentor = OtelRecordFunctionInstrumentor()
        self.instrumentor.instrument(
            tracer_provider=provider, chrome_trace=str(TRACE), sinks=[self.sink]
        )
        self.begun = 0

    def work(self, name: str) -> None:
        with self._tracer.start_as_current_span("request"), record_function(name):
            for _ in range(20):
                with record_function("inner"):
                    pass
        self.begun += 21

    def work_amid_failures(self, seconds: float, seed: int) -> int:
        """Work while allocations fail; the number of those that did."""
        library = ctypes.PyDLL(None)
        library.fail_one_in.argtypes = (ctypes.c_uint, ctypes.c_size_t, ctypes.c_uint)
        library.fail_one_in.restype = None
        library.spare_below.argtypes = (ctypes.c_size_t,)
        library.spare_below.restype = None
        library.stop_failing.argtypes, library.stop_failing.restype = (), ctypes.c_ulong
        library.spare_below(SMALLEST_OF_PROGRAM)
        library.fail_one_in(ONE_IN, SMALLEST, seed)
        until = time.monotonic() + seconds
        rounds = 0
        while time.monotonic() < until:
            for _ in range(20):
                self.work("amid failures")
            rounds += 1
            if rounds % 10 == 0:
                self.instrumentor.flush(0.1)
            time.sleep(0.001)  # let the threads that drain and write do so
        return int(library.stop_failing())

    def check(self) -> None:
        """Recording goes on, and the counters balance."""
        counters = self.instrumentor.counters()
        lost_in_drain = _native.counters().lost_in_drain
        assert counters["recorded"] == self.begun, (counters, self.begun)
        assert counters["waiting"] == counters["dropped.shutdown"] == 0, counters
        assert "afterwards" in set(self.sink.rows().names)
        events = json.loads(TRACE.read_text())["traceEvents"]
        in_file = sum(event["ph"] == "X" and "Event id" in event["args"] for event in events)
        lost = sum(counters[f"chrome_trace.dropped.{why}"] for why in REASONS)
        never_written = lost + lost_in_drain + counters["dropped.buffer_full"]
        assert in_file + never_written == self.begun, (in_file, lost_in_drain, counters, self.begun)


def run_program(seconds: float, seed: int) -> None:
    program = Program()
    program.work("warm")
    assert program.instrumentor.flush(PATIENCE_S)
    failed = program.work_amid_failures(seconds, seed)
    program.work("afterwards")
    assert program.instrumentor.flush(PATIENCE_S)
    with profile() as prof:
        program.work("profiled")
    assert [event.name for event in prof.events()].count("inner") == 20
    program.instrumentor.uninstrument()
    program.check()
    assert failed > 10, failed


def soak(runs: int, seconds: float, first_seed: int) -> int:
    """Run the program in processes of their own; the number of those that failed."""
    failures = 0
    with tempfile.TemporaryDirectory(prefix="memory-soak-") as folder:
        library = Path(folder) / "failing_allocations.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, LIBRARY], check=True)
        preloaded = {
            "LD_PRELOAD": str(library),
            "PYTHONMALLOC": "malloc",
            "PYTHONFAULTHANDLER": "1",
        }
        for seed in range(first_seed, first_seed + runs):
            done = subprocess.run(
                [
                    sys.executable,
                    __file__,
                    "--inside",
                    "--seconds",
                    str(seconds),
                    "--seed",
                    str(seed),
                ],
                env={**os.environ, **preloaded},
                cwd=folder,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != 0:
                failures += 1
                print(f"--seed {seed}: exit code {done.returncode}\n{done.stderr}", flush=True)
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--inside", action="store_true", help="run the program here")
    asked = parser.parse_args()
    if asked.inside:
        run_program(asked.seconds, asked.seed)
        return 0
    print(f"{asked.runs} x {asked.seconds} s, --seed {asked.seed}", flush=True)
    failures = soak(asked.runs, asked.seconds, asked.seed)
    print(f"{failures} of {asked.runs} failed")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
