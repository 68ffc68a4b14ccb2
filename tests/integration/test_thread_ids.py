"""RecordFunction's ids of threads: PyTorch's, one for each thread as long as it lives, also
where torch comes late.
"""

from __future__ import annotations

from collections.abc import Callable
from subprocess import CompletedProcess

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.one_python]

WORKERS = """
import queue, threading
from otel_recfn import profile, record_function
from otel_recfn.observing import RecordFunction

class Worker(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.asked, self.answered = queue.Queue(), queue.Queue()
        self.start()
    def run(self):
        while True:
            self.answered.put(self.asked.get()())
    def call(self, function):
        self.asked.put(function)
        return self.answered.get(timeout=60)

def own_id():
    return RecordFunction.current_thread_id()
"""

TORCHS = """
def torchs_id():
    cpu = torch.autograd.ProfilerState.CPU
    config = torch.autograd.ProfilerConfig(cpu, *[False] * 5, EXPERIMENTAL)
    torch.autograd._enable_profiler_legacy(config)
    torch.ones(1)
    (thread,) = torch.autograd._disable_profiler_legacy()
    return thread[0].thread_id()

EXPERIMENTAL = torch._C._profiler._ExperimentalConfig()
"""

BEFORE_THE_OBSERVER = f"""
import torch, torch.autograd
{WORKERS}
{TORCHS}
worker = Worker()
before = worker.call(own_id), own_id()
with profile():
    torch.ones(1)
assert (worker.call(own_id), own_id()) == before
assert (worker.call(torchs_id), torchs_id()) == before
assert Worker().call(own_id) not in before
"""


def test_an_id_is_torchs_and_the_same_before_and_after_the_observer_is_loaded(
    run_with_torch: Callable[..., CompletedProcess[str]],
) -> None:
    run_with_torch(BEFORE_THE_OBSERVER)


BEFORE_TORCH = f"""
import sys
{WORKERS}
def forward(name):
    with record_function(name):
        made.append(torch.ones(1, requires_grad=True) * 2)

def asked(fn):
    if fn.name() == "aten::mul" or fn.name() == "MulBackward0":
        seen.append((fn.name(), fn.thread_id(), fn.forward_thread_id(), own_id()))

made, seen = [], []
first, second, third = Worker(), Worker(), Worker()
before = [each.call(own_id) for each in (first, second)]
with profile():
    third.call(lambda: record_function("before torch").__enter__())
before += [third.call(own_id), own_id()]
assert len(set(before)) == 4, before

assert "torch" not in sys.modules
import torch
from otel_recfn import RecordScope
from otel_recfn.observing import RecordFunctionCallback, add_global_callback
# PyTorch meets them first, and calls them by numbers that have been ids.
others = [Worker() for _ in range(6)]
for each in others:
    each.call(lambda: (torch.ones(1, requires_grad=True) * 2).sum())
add_global_callback(RecordFunctionCallback(asked))
with profile() as prof:
    for each in (third, second, first, *others):
        each.call(lambda: forward("forward"))
    for result in made:
        result.backward()
after = [*(each.call(own_id) for each in (first, second, third)), own_id()]
assert after == before, (before, after)
ids = before + [each.call(own_id) for each in others]
assert len(set(ids)) == len(ids), ids

forward_ids = [each.call(own_id) for each in (third, second, first, *others)]
assert [event.thread_id for event in prof.events() if event.name == "forward"] == forward_ids
backward = [event.forward_thread_id for event in prof.events() if event.name == "MulBackward0"]
assert backward == forward_ids, (backward, forward_ids)
muls = [each[1:] for each in seen if each[0] == "aten::mul" and not each[2]]
assert [each[0] for each in muls[: len(forward_ids)]] == forward_ids, muls
assert all(thread == current for thread, _, current in muls), muls
assert [each[2] for each in seen if each[0] == "MulBackward0"] == forward_ids, seen
"""


def test_ids_from_before_torch_was_imported_stay_and_are_no_other_threads(
    run_program: Callable[..., CompletedProcess[str]],
) -> None:
    run_program(BEFORE_TORCH)


ENDS_ELSEWHERE = f"""
import torch, torch.autograd
{WORKERS}
{TORCHS}
from otel_recfn import legacy

with profile():
    torch.ones(1)
for _ in range(5):
    Worker().call(torchs_id)  # PyTorch numbers more threads than record
future, worker = torch.futures.Future(), Worker()
with profile() as prof:
    legacy.enable_profiler_legacy(legacy.ProfilerConfig(legacy.ProfilerState.CPU))
    record = torch.ops.profiler._record_function_enter_new("range")
    torch.ops.profiler._call_end_callbacks_on_jit_fut._RecordFunction(record, future)
    worker.call(lambda: future.set_result(1))
    events = [event for thread in legacy.disable_profiler_legacy() for event in thread]
here, there = own_id(), worker.call(own_id)
assert here != there == worker.call(torchs_id)
assert [event.thread_id for event in events if event.kind_str == "pop"] == [there]
(event,) = [event for event in prof.events() if event.name == "range"]
assert (event.thread_id, event.end_thread.thread_id) == (here, there)
"""


def test_a_thread_that_only_ends_a_range_has_its_id_in_it(
    run_with_torch: Callable[..., CompletedProcess[str]],
) -> None:
    run_with_torch(ENDS_ELSEWHERE)
