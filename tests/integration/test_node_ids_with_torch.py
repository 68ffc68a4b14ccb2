"""The process's number in a distributed run: what the program tells us reaches PyTorch, and the
other way round.
"""

from __future__ import annotations

from collections.abc import Callable
from subprocess import CompletedProcess

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.one_python]

PROGRAM = """
import torch, torch.autograd
from otel_recfn import profile
from otel_recfn.observing import RecordFunction

rpc = __import__("torch._C._distributed_rpc", fromlist=["_set_profiler_node_id"])

def torchs():
    cpu = torch.autograd.ProfilerState.CPU
    config = torch.autograd.ProfilerConfig(cpu, *[False] * 5, EXPERIMENTAL)
    torch.autograd._enable_profiler_legacy(config)
    torch.neg(torch.ones(2))
    events = [event for thread in torch.autograd._disable_profiler_legacy() for event in thread]
    return {event.node_id() for event in events if event.name() == "aten::neg"}

EXPERIMENTAL = torch._C._profiler._ExperimentalConfig()
RecordFunction.set_default_node_id(3)
with profile() as prof:
    assert torchs() == {3}, torchs()
    for node_id in (4, 5):
        RecordFunction.set_default_node_id(node_id)
        torch.neg(torch.ones(2))
    assert torchs() == {5}
    RecordFunction.set_default_node_id(-1)  # PyTorch has no such node and keeps the last one
    torch.neg(torch.ones(2))
names = [event.node_id for event in prof.events() if event.name == "aten::neg"]
assert names == [3, 4, 5, 5, 5], names

rpc._set_profiler_node_id(8)
with profile() as prof:
    torch.neg(torch.ones(2))
assert RecordFunction.get_default_node_id() == 8
assert {event.node_id for event in prof.events()} == {8}
"""


def test_the_node_id_goes_both_ways(run_with_torch: Callable[..., CompletedProcess[str]]) -> None:
    pytest.importorskip("torch._C._distributed_rpc")
    run_with_torch(PROGRAM)
