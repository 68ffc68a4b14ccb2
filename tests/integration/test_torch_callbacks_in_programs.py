"""Callbacks on PyTorch's operators in whole programs: torch imported late, forks, exits, no
compiler, interrupts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")


pytestmark = pytest.mark.torch


PROGRAM = """
import logging, sys, threading
logging.basicConfig(format="%(levelname)s %(message)s", stream=sys.stdout, level=logging.INFO)
from otel_recfn import observing
from otel_recfn.observing import RecordFunctionCallback
names = []
callback = RecordFunctionCallback(lambda function: names.append(function.name()))
def use():
    import torch
    tensor = torch.ones(2)
    tensor.is_set_to(tensor)
    return names.count("aten::is_set_to")
"""
Run = Callable[..., Any]


class TestPrograms:
    def test_torch_imported_later(self, run_program: Run) -> None:
        run_program(
            PROGRAM
            + "observing.add_global_callback(callback); assert 'torch' not in sys.modules; assert"
            " use() == 1"
        )

    def test_a_threads_own_and_torch_later(self, run_program: Run) -> None:
        run_program(PROGRAM + "observing.add_thread_local_callback(callback); assert use() == 1")

    def test_nothing_is_compiled_without_a_callback(self, run_program: Run, tmp_path: Any) -> None:
        tmp_path.chmod(0o700)
        program = "assert use() == 0\nwith observing.DisableRecordFunctionGuard(): use()"
        run_program(PROGRAM + program, OTEL_RECFN_CACHE_DIR=str(tmp_path / "cache"))
        assert not (tmp_path / "cache").exists()

    def test_without_a_compiler_python_ranges_are_seen_and_it_is_said_once(
        self, run_with_torch: Run, tmp_path: Any
    ) -> None:
        tmp_path.chmod(0o700)
        done = run_with_torch(
            PROGRAM
            + """
import torch
observing.add_global_callback(callback); observing.add_global_callback(callback)
assert use() == 0
with observing.RecordFunction() as range_: range_.before("python")
assert names == ["python", "python"]
""",
            OTEL_RECFN_CACHE_DIR=str(tmp_path / "cache"),
            PATH="",
            CXX="",
        )
        assert done.stdout.count("operators, only Python ranges: no C++ compiler found") == 1

    def test_a_forked_child_goes_on(self, run_with_torch: Run) -> None:
        run_with_torch(
            PROGRAM
            + """
import os, torch
observing.add_global_callback(callback)
assert use() == 1
stop = threading.Event()
def work():
    while not stop.is_set(): torch.ones(2).is_set_to(torch.ones(2))
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads: thread.start()
def forked_inside(function):
    in_main_thread = threading.current_thread() is threading.main_thread()
    if function.name() == "aten::is_set_to" and in_main_thread and not os.fork():
        names.clear()
        os._exit(0)
inside = observing.add_global_callback(RecordFunctionCallback(forked_inside))
torch.ones(2).is_set_to(torch.ones(2))
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
observing.remove_callback(inside)
child = os.fork()
if child == 0:
    names.clear()
    # Through atexit, where nothing may wait for the parent's threads.
    sys.exit(0 if use() == 1 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
stop.set()
for thread in threads: thread.join()
"""
        )

    @pytest.mark.parametrize(
        ("handler", "error"),
        [
            ("handler", "KeyboardInterrupt"),
            ("handler", "TimeIsUp"),
            ("signal.default_int_handler", "KeyboardInterrupt"),
        ],
    )
    def test_an_interrupt_in_a_callback_reaches_the_program(
        self, run_with_torch: Run, handler: str, error: str
    ) -> None:
        done = run_with_torch(
            PROGRAM
            + f"""
import signal, torch
class TimeIsUp(Exception): pass
def handler(*_): raise {error}
signal.signal(signal.SIGUSR1, {handler})
def start(function):
    if function.name() == "aten::is_set_to": signal.raise_signal(signal.SIGUSR1)
observing.add_global_callback(RecordFunctionCallback(start))
seen = 0
for _ in range(50):
    try:
        use()
        for _ in range(10): pass
    except {error}:
        seen += 1
print("seen", seen, observing.has_callbacks())
"""
        )
        assert done.stdout.splitlines()[-1] == "seen 50 True"
