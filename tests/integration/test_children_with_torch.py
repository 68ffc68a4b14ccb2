"""Children of a program with PyTorch, in each way that one makes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trace_files import events_in

pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("needs_observer")]

FORKING = {
    "os.fork": """
pid = os.fork()
if pid == 0:
    work(torch.nn.Tanh())
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
""",
    "multiprocessing fork": """
process = multiprocessing.get_context("fork").Process(target=work, args=(torch.nn.Tanh(),))
process.start()
process.join()
assert process.exitcode == 0
""",
    "multiprocessing spawn": """
process = multiprocessing.get_context("spawn").Process(target=spawned, args=(torch.nn.Tanh(),))
process.start()
process.join()
assert process.exitcode == 0
""",
    "data loader": """
loader = torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=2, multiprocessing_context="fork")
assert len(list(loader)) == 4
del loader
""",
}


@pytest.mark.parametrize("way", FORKING)
def test_children(run_with_torch: Callable[..., Any], tmp_path: Path, way: str) -> None:
    """A child writes what it does itself into a file of its own; the parent's file is the parent's alone."""
    program = f"""
import multiprocessing, os, sys
import torch
from otel_recfn import OtelRecordFunctionInstrumentor
instrumentor = OtelRecordFunctionInstrumentor()

def work(layer):
    with torch.profiler.record_function(f"work of {{os.getpid()}}"):
        layer(torch.ones(3))

def spawned(layer):
    instrumentor.instrument(chrome_trace="trace.json.gz")
    work(layer)

class Data(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, index):
        work(torch.nn.Tanh())
        return index

if __name__ == "__main__":
    torch.set_num_threads(1)
    print(os.getpid())
    instrumentor.instrument(chrome_trace="trace.json.gz")
    work(torch.nn.ReLU())
{"".join(f"    {line}" for line in FORKING[way].strip().splitlines(keepends=True))}
    work(torch.nn.ReLU())
"""
    parent = int(run_with_torch(program).stdout.splitlines()[0])
    files = {path.name: path for path in tmp_path.glob("trace*")}
    mine = events_in(files.pop("trace.json.gz"), "Xb")
    assert [event["name"] for event in mine].count(f"work of {parent}") == 2
    assert {event["pid"] for event in mine} == {parent}
    assert "aten::relu" in {event["name"] for event in mine}
    assert "aten::tanh" not in {event["name"] for event in mine}
    assert len(files) == (2 if way == "data loader" else 1)
    for name, path in files.items():
        child = events_in(path, "Xb")
        (pid,) = {event["pid"] for event in child}
        assert name == f"trace.pid{pid}.json.gz"
        assert pid != parent
        tanhs = [event["name"] for event in child].count("aten::tanh")
        assert tanhs == [event["name"] for event in child].count(f"work of {pid}") == (4 if way == "data loader" else 1)
        assert f"work of {parent}" not in {event["name"] for event in child}
