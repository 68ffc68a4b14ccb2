"""How a program ends is its own: exit code, output, daemon threads; and the trace is whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.example_counts import SOAK
from helpers.trace_files import names_in

pytest.importorskip("torch")

pytestmark = pytest.mark.torch

EXITS = 6 * SOAK


def test_exit_code_and_output_are_the_programs(
    run_program: Callable[..., Any], tmp_path: Path
) -> None:
    program = """
import sys
if sys.argv[1] == "instrumented":
    from otel_recfn import OtelRecordFunctionInstrumentor
    OtelRecordFunctionInstrumentor().instrument(chrome_trace="trace.json.gz")
import torch
print(torch.relu(torch.tensor([-1.0, 2.0])).tolist())
print("to stderr", file=sys.stderr)
sys.exit(3)
"""
    plain = run_program(program, "plain", code=3)
    observed = run_program(program, "instrumented", code=3)
    assert (plain.stdout, plain.stderr) == (observed.stdout, observed.stderr)
    assert "aten::relu" in names_in(tmp_path / "trace.json.gz")


@pytest.mark.parametrize("work", ["ranges", "operators"])
def test_exit_while_daemon_threads_run(
    run_with_torch: Callable[..., Any], tmp_path: Path, work: str
) -> None:
    """Never a hang, and the file is whole.

    PyTorch itself aborts when a daemon thread's operator wants the GIL of a Python that is gone, so
    with operators that is what may happen with us too, and nothing else.
    """
    program = f"""
import gc, os, signal, sys, threading
import torch
gc.unfreeze()  # the exit takes as long as that of any program with torch
from otel_recfn import OtelRecordFunctionInstrumentor, record_function
import otel_recfn.profiling  # once, and not in each child
sys.setswitchinterval(0.0005)  # the threads, which never rest, let the main one end the sooner
torch.set_num_threads(1)
x = torch.ones(3)

def ranges():
    started.wait()
    while True:
        with record_function("ours"):
            sum(range(20_000))

def operators():
    started.wait()
    while True:
        with record_function("ours"):
            torch.relu(x)

for number in range({EXITS}):
    child = os.fork()
    if child == 0:
        OtelRecordFunctionInstrumentor().instrument(chrome_trace=f"trace{{number}}.json.gz")
        started = threading.Barrier(3)
        for _ in range(2):
            threading.Thread(target={work}, daemon=True).start()
        started.wait()
        for _ in range(20):
            torch.tanh(x)
        break
    status = os.waitpid(child, 0)[1]
    assert status == 0 or {work == "operators"} and os.WTERMSIG(status) == signal.SIGABRT, status
"""
    run_with_torch(program)
    files = list(tmp_path.glob("trace*.json.gz"))
    assert len(files) == EXITS
    for file in files:
        assert names_in(file).count("aten::tanh") == 20


def test_the_exit_delivers_what_came_first_while_there_is_time_and_counts_the_rest(
    run_program: Callable[..., Any],
) -> None:
    """The sampler, which is asked for each of these threads, would take 20 s for all."""
    done = run_program("""
import atexit, threading, time
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler
from otel_recfn import OtelRecordFunctionInstrumentor, record_function

THREADS = 2000

class SlowSampler(Sampler):
    asked = 0
    def should_sample(self, *arguments, **keywords):
        ends.wait()
        self.asked += 1
        time.sleep(0.01)
        return ALWAYS_ON.should_sample(*arguments, **keywords)
    def get_description(self):
        return "slow"

def record(name):
    with record_function(name):
        pass

def check():
    counts = instrumentor.counters()
    settled = [counts[name] for name in ("exported", "folded", "unsampled", "failed")]
    dropped = [count for name, count in counts.items() if name.startswith("dropped.")]
    assert counts["recorded"] == THREADS, counts
    assert counts["recorded"] + counts["added"] == sum(settled) + sum(dropped), counts
    assert 0 < sampler.asked < THREADS // 2 < counts["dropped.shutdown"], (sampler.asked, counts)
    spans = exporter.get_finished_spans()
    names = sorted(int(span.name) for span in spans if span.name.isdecimal())
    assert names == list(range(len(names))) != [], names
    print("checked")

ends, sampler, exporter = threading.Event(), SlowSampler(), InMemorySpanExporter()
trace.set_tracer_provider(provider := TracerProvider(sampler))
provider.add_span_processor(SimpleSpanProcessor(exporter))
atexit.register(check)  # which runs when our exit is over
instrumentor = OtelRecordFunctionInstrumentor()
instrumentor.instrument(roots_per_second=None)
for number in range(THREADS):
    thread = threading.Thread(target=record, args=(str(number),))
    thread.start()
    thread.join()
ends.set()
""")
    assert done.stdout == "checked\n"
