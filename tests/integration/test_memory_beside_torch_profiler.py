"""PyTorch's memory reports while others need the same place in PyTorch, of which we leave nothing taken."""

from __future__ import annotations

import ctypes
import subprocess
import threading
from typing import Any

import pytest

from patience import PATIENCE_S

torch = pytest.importorskip("torch")

from memory_reports import (  # noqa: E402
    BYTES,
    NUMBERS,
    inside_an_operator_of_pytorch,
    inside_an_operator_of_the_program,
    nothing_is_left,
    profiler_of_torch,
    recorded,
    reported_to,
    reports,
)
from observed import Observed, observed  # noqa: E402
from torch.profiler import record_function  # noqa: E402
from torch_programs import run_together  # noqa: E402

from otel_recfn.model.events import Extra  # noqa: E402
from otel_recfn.pytorch import observer_build  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("needs_observer")]

DEBUG_INFO = """
#include <c10/util/ThreadLocalDebugInfo.h>
using c10::DebugInfoKind;
using c10::ThreadLocalDebugInfo;
static const auto theirs = std::make_shared<c10::DebugInfoBase>();
extern "C" void push() { ThreadLocalDebugInfo::_push(DebugInfoKind::TEST_INFO, theirs); }
extern "C" void pop() { ThreadLocalDebugInfo::_pop(DebugInfoKind::TEST_INFO); }
extern "C" int theirs_is_innermost() { return ThreadLocalDebugInfo::_peek(DebugInfoKind::TEST_INFO) == theirs; }
extern "C" int is_empty() { return ThreadLocalDebugInfo::current() == nullptr; }
"""


@pytest.fixture(scope="module")
def debug_info(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Puts information of another kind into this thread's debug info, as a library of the program might."""
    folder = tmp_path_factory.mktemp("debug_info")
    source, library = folder / "debug_info.cpp", folder / "debug_info.so"
    source.write_text(DEBUG_INFO)
    torch_files = observer_build.find_torch()
    include = f"-I{torch_files.directory}/include"
    command = [*observer_build.find_compiler(), "-std=c++20", "-fPIC", "-shared", include, str(source), "-o"]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={torch_files.cxx11_abi}"
    subprocess.run([*command, str(library), abi, f"-L{torch_files.directory}/lib", "-lc10"], check=True)
    return ctypes.CDLL(str(library))


@pytest.mark.parametrize("started_in_a_range", [False, True])
def test_torch_profiler_has_the_memory_of_its_time_and_we_have_the_rest(started_in_a_range: bool) -> None:
    theirs = profiler_of_torch()
    with observed(Extra.MEMORY) as run:
        assert recorded(run)
        if started_in_a_range:
            with record_function("range"):
                torch.ones(NUMBERS)
                theirs.start()
        else:
            theirs.start()
        assert not recorded(run)
        theirs.stop()
        assert recorded(run)
    assert BYTES in reported_to(theirs)
    nothing_is_left()


def test_started_while_torch_profiler_runs_and_stopped_before_it_we_do_not_disturb_it() -> None:
    with profiler_of_torch() as theirs:
        with observed(Extra.MEMORY) as run:
            assert not recorded(run)
        torch.ones(NUMBERS)
    assert reported_to(theirs).count(BYTES) == 2
    nothing_is_left()


def test_started_while_torch_profiler_runs_and_stopped_after_it() -> None:
    with profiler_of_torch() as theirs:
        run = Observed()
        run.start(Extra.MEMORY)
        assert not recorded(run)
    try:
        assert BYTES in reported_to(theirs)
        assert recorded(run)
    finally:
        run.stop()
        run.events()
    nothing_is_left()


def test_torch_profiler_in_one_thread_leaves_the_memory_of_the_others_to_us() -> None:
    profiling, done = threading.Event(), threading.Event()

    def profiled() -> None:
        with profiler_of_torch():
            profiling.set()
            assert done.wait(PATIENCE_S)

    def unprofiled(run: Observed) -> None:
        assert profiling.wait(PATIENCE_S)
        try:
            assert recorded(run)
        finally:
            done.set()

    with observed(Extra.MEMORY) as run:
        run_together(profiled, lambda: unprofiled(run))


def test_torch_profiler_that_starts_inside_an_operator_has_the_memory_until_it_stops() -> None:
    theirs = profiler_of_torch()
    with observed(Extra.MEMORY) as run:
        inside_an_operator_of_the_program(theirs.start)
        torch.ones(NUMBERS)
        assert not recorded(run)
        theirs.stop()
        assert recorded(run)
    assert reported_to(theirs).count(BYTES) == 2
    nothing_is_left()


def test_torch_profiler_that_stops_inside_an_operator_leaves_nothing_behind() -> None:
    theirs = profiler_of_torch()
    with observed(Extra.MEMORY) as run:
        theirs.start()
        inside_an_operator_of_pytorch(theirs.stop)
        assert recorded(run)
    nothing_is_left()


def test_torch_profiler_inside_an_operator_from_start_to_stop() -> None:
    theirs = profiler_of_torch()

    def work() -> None:
        with theirs:
            torch.ones(NUMBERS)

    with observed(Extra.MEMORY) as run:
        inside_an_operator_of_the_program(work)
        assert recorded(run)
    assert BYTES in reported_to(theirs)
    nothing_is_left()


def test_the_capture_that_stops_inside_an_operator_records_no_more_memory_and_leaves_nothing_behind() -> None:
    with observed(Extra.MEMORY) as run:

        def work() -> None:
            run.stop()
            torch.ones(NUMBERS)

        inside_an_operator_of_pytorch(work)
        nothing_is_left()
        assert BYTES not in {event.nbytes for event in reports(run.events())}


def test_an_operator_that_raises_leaves_nothing_behind() -> None:
    with observed(Extra.MEMORY):
        with pytest.raises(RuntimeError):
            torch.ones(2) @ torch.ones(3)
        nothing_is_left()


def test_code_inside_an_operator_finds_no_profiler() -> None:
    seen: list[bool] = []
    with observed(Extra.MEMORY):
        inside_an_operator_of_pytorch(lambda: seen.append(torch.autograd._profiler_enabled()))
    assert seen == [False]


def test_what_others_put_above_ours_inside_an_operator_stays_and_ours_goes_when_it_has_gone(debug_info: Any) -> None:
    with observed(Extra.MEMORY) as run:
        inside_an_operator_of_pytorch(debug_info.push)
        assert debug_info.theirs_is_innermost()
        debug_info.pop()
        assert not debug_info.is_empty()
        assert recorded(run)
        assert debug_info.is_empty()
