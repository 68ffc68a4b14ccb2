"""How a program ends is its own: exit code, output, daemon threads; and the trace is whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from example_counts import SOAK
from trace_files import names_in

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
    """Never a hang, and the file is whole. PyTorch itself aborts when a daemon thread's operator wants the GIL of a Python that
    is gone, so with operators that is what may happen with us too, and nothing else."""
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
