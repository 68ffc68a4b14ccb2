"""Operators on threads that PyTorch starts: autograd's for deep reentrance and for devices, and the inter-op pool's."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable
from typing import Any

import pytest

from otel_recfn.model.batch import Event
from otel_recfn.model.events import RecordScope

torch = pytest.importorskip("torch")

from torch_programs import reentrant_training, scripted_programs  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("needs_observer")]

DEPTH = 150
NODE = "ReentrantBackward"

DEVICE = """
import json, sys
import torch
from torch.utils import backend_registration
from otel_recfn import OtelRecordFunctionInstrumentor
from otel_recfn.sinks.in_memory import InMemorySink

try:
    backend_registration._setup_privateuseone_for_python_backend("abacus")
    empty = torch._C._acc.create_empty_tensor
except AttributeError:
    print(json.dumps(None))
    sys.exit()


class OnAbacus(torch.Tensor):
    @staticmethod
    def __new__(cls, held):
        made = empty(held.size(), held.dtype)
        made.__class__ = OnAbacus
        return made

    def __init__(self, held):
        self.held = held


def multiply(one, other):
    return OnAbacus(one.held * other.held)


torch.library.impl("aten::mul.Tensor", "privateuseone")(multiply)
sink = InMemorySink()
OtelRecordFunctionInstrumentor().instrument(sinks=[sink])
x, factor = OnAbacus(torch.tensor([2.0, 3.0])).requires_grad_(), OnAbacus(torch.tensor([4.0, 5.0]))
[gradient] = torch.autograd.grad(x * factor, x, OnAbacus(torch.ones(2)))
assert gradient.held.tolist() == [4.0, 5.0]
OtelRecordFunctionInstrumentor().uninstrument()
names = {event.event_id: event.name for event in sink.events()}
print(json.dumps([
    [event.name, event.thread.native_id, event.thread_id, event.forward_thread_id, event.sequence_nr,
     names.get(event.parent, "")]
    for event in sink.events()
]))
"""


def test_a_backward_deep_within_backwards(instrument: Callable[..., Any]) -> None:
    ours = instrument()
    reentrant_training(torch.tensor(float(DEPTH), requires_grad=True))
    events = ours.finish()
    nodes = [event for event in events if event.name == NODE]
    assert len(nodes) == DEPTH + 1
    assert all(node.scope == RecordScope.BACKWARD_FUNCTION for node in nodes)
    threads = {node.thread_id for node in nodes}
    assert len(threads) == len({node.thread.native_id for node in nodes}) == 1 + DEPTH // 60
    [own] = {node.thread_id for node in nodes if node.thread.native_id == threading.get_native_id()}
    assert set(one_after_the_other(own, nodes)) == threads
    assert_nested(events)


def one_after_the_other(first: int, nodes: list[Event]) -> list[int]:
    """A thread, the one that went on with its backward, and so on: each worker begins with a node of its caller's forward."""
    crossed = {(node.forward_thread_id, node.thread_id) for node in nodes if node.thread_id != node.forward_thread_id}
    went_on, threads = dict(crossed), [first]
    while threads[-1] in went_on:
        threads.append(went_on.pop(threads[-1]))
    assert not went_on
    assert len(crossed) == len(threads) - 1
    return threads


def assert_nested(events: list[Event]) -> None:
    """Every range within its parent's time, and on its thread, but for nodes of a backward that goes on in another one."""
    by_id = {event.event_id: event for event in events}
    nested = [event for event in events if event.parent]
    assert len(nested) > len(events) // 2
    for event in nested:
        parent = by_id[event.parent]
        assert event.thread == event.end_thread
        assert parent.thread == event.thread or (parent.name, event.name[:16]) == (NODE, "autograd::engine")
        assert parent.start_ns <= event.start_ns <= event.end_ns <= parent.end_ns


def test_the_inter_op_pool(instrument: Callable[..., Any]) -> None:
    _, fork_and_wait = scripted_programs()
    ours = instrument()
    fork_and_wait(torch.ones(3))
    by_id = {event.event_id: event for event in ours.finish()}
    forked = [event for event in by_id.values() if event.name == "<forked function>"]
    assert len(forked) == 2
    for branch in forked:
        assert branch.thread.native_id not in (threading.get_native_id(), 0)
    inside = [event for event in by_id.values() if event.parent and by_id[event.parent] in forked]
    assert sum(event.name == "aten::relu" for event in inside) == 2
    assert {event.thread for event in inside} == {branch.thread for branch in forked}


def test_the_worker_of_a_device(run_with_torch: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    rows = json.loads(run_with_torch(DEVICE).stdout)
    if rows is None:
        pytest.skip("this torch cannot have a device that is written in Python")
    [forward] = [row for row in rows if row[0] == "aten::mul" and not row[5]]
    [node] = [row for row in rows if row[0] == "MulBackward0"]
    [inside] = [row for row in rows if row[5] == "MulBackward0"]
    assert node[1] == inside[1] != forward[1]
    assert node[2] == inside[2] != forward[2]
    assert node[3:5] == [forward[2], forward[4]]
    assert (inside[0], node[5]) == ("aten::mul", "autograd::engine::evaluate_function: MulBackward0")
