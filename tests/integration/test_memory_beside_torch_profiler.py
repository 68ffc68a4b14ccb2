"""PyTorch's memory reports while others need the same place in PyTorch, of which we leave nothing taken."""

from __future__ import annotations

import threading

import pytest

from patience import PATIENCE_S

torch = pytest.importorskip("torch")

from memory_reports import (  # noqa: E402
    BYTES,
    NUMBERS,
    inside_an_operator_of_pytorch,
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

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("needs_observer")]


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


def test_torch_profiler_that_stops_inside_an_operator_leaves_nothing_behind() -> None:
    theirs = profiler_of_torch()
    with observed(Extra.MEMORY) as run:
        theirs.start()
        inside_an_operator_of_pytorch(theirs.stop)
        assert recorded(run)
    nothing_is_left()


def test_the_capture_that_stops_inside_an_operator_records_no_more_memory_and_leaves_nothing_behind() -> None:
    with observed(Extra.MEMORY) as run:

        def work() -> None:
            run.stop()
            torch.ones(NUMBERS)

        inside_an_operator_of_pytorch(work)
        nothing_is_left()
        assert BYTES not in {event.nbytes for event in reports(run.events())}


def test_code_inside_an_operator_finds_no_profiler() -> None:
    seen: list[bool] = []
    with observed(Extra.MEMORY):
        inside_an_operator_of_pytorch(lambda: seen.append(torch.autograd._profiler_enabled()))
    assert seen == [False]
