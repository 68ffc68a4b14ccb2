"""PyTorch's memory reports as rows, also while others need the same place in PyTorch, of which
we leave nothing taken.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from helpers.timeouts import PATIENCE_S

torch = pytest.importorskip("torch")
from torch.autograd import profiler_legacy  # noqa: E402
from torch.profiler import ProfilerActivity, profile, record_function  # noqa: E402

from helpers.observed_operators import Observed, observed  # noqa: E402
from helpers.torch_programs import run_together, scripted_programs  # noqa: E402
from otel_recfn.model.batch import Event  # noqa: E402
from otel_recfn.model.events import Extra, RowKind  # noqa: E402

pytestmark = pytest.mark.torch

NUMBERS = 1000
BYTES = 4 * NUMBERS
_inside: list[Callable[[], object]] = []


class Intruder(torch.Tensor):  # type: ignore[misc]
    """Runs the program's Python inside PyTorch's own operators."""

    @classmethod
    def __torch_dispatch__(
        cls, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        for work in _inside:
            work()
        return torch.ones(2)


def inside_pytorch_operator(work: Callable[[], object]) -> None:
    intruder = torch.ones(2).as_subclass(Intruder)
    _inside.append(work)
    try:
        intruder.cos()
    finally:
        _inside.clear()


def reports(events: list[Event]) -> list[Event]:
    return [event for event in events if event.kind == RowKind.MEMORY]


def recorded(run: Observed) -> bool:
    """Whether memory is recorded in this thread now."""
    run.events()
    torch.ones(NUMBERS)
    return BYTES in {event.nbytes for event in reports(run.events())}


def torch_profiler(**options: Any) -> Any:
    return profile(activities=[ProfilerActivity.CPU], profile_memory=True, **options)


def reported_to(theirs: Any) -> list[int]:
    """Bytes, as torch.profiler was told."""
    return [
        event.nbytes()
        for event in theirs.profiler.kineto_results.events()
        if event.name() == "[memory]"
    ]


def nothing_is_left() -> None:
    """The legacy profiler refuses to start where anything is in PyTorch's place for profilers."""
    with profiler_legacy.profile():
        pass


def test_what_an_operator_allocates_is_a_row_below_it() -> None:
    with observed(Extra.MEMORY) as run:
        x = torch.ones(NUMBERS)
        events = run.events()
    assert x.nbytes == BYTES
    (row,) = reports(events)
    assert (row.name, row.nbytes, row.device, row.start_ns) == (
        "[memory]",
        BYTES,
        "cpu",
        row.end_ns,
    )
    parent = next(event for event in events if event.event_id == row.parent)
    assert parent.name == "aten::empty"
    assert parent.thread_id == row.thread_id
    nothing_is_left()


def test_of_operators_everything_is_recorded_that_torch_profiler_records() -> None:
    image = torch.ones(2, 3, 9, 9)
    layer = torch.nn.Conv2d(3, 4, 3)

    def work() -> list[torch.Tensor]:
        x = layer(image)
        return [
            x,
            x.softmax(-1),
            x.logsumexp(0),
            x.sort().values,
            torch.cat([x, x]),
            x.flatten(2) @ x.flatten(2).mT,
        ]

    kept = [work()]
    with torch_profiler() as theirs:
        kept.append(work())
    with observed(Extra.MEMORY) as run:
        kept.append(work())
        ours = [event.nbytes for event in reports(run.events())]
    assert ours == reported_to(theirs)
    assert any(number < 0 for number in ours)
    nothing_is_left()


def test_a_thread_that_torchscript_forks_and_a_backward_pass_record_theirs() -> None:
    fork_and_wait = scripted_programs()[1]
    x = torch.ones(NUMBERS, requires_grad=True)
    with observed(Extra.MEMORY) as run:
        fork_and_wait(torch.ones(NUMBERS))
        assert len({event.thread_id for event in reports(run.events())}) > 1
        loss = x.cos().sum()
        run.events()
        loss.backward()
        assert BYTES in {event.nbytes for event in reports(run.events())}
    nothing_is_left()


def test_with_shapes_it_is_the_same_and_without_memory_asked_for_there_is_none() -> None:
    with observed(Extra.MEMORY | Extra.SHAPES) as run:
        assert recorded(run)
        run.start(Extra.SHAPES)
        assert not recorded(run)
        run.start(Extra.MEMORY)
        assert recorded(run)
    nothing_is_left()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_memory_of_a_gpu_names_its_device() -> None:
    with observed(Extra.MEMORY) as run:
        torch.ones(NUMBERS, device="cuda:0")
        assert "cuda:0" in {event.device for event in reports(run.events())}


@pytest.mark.parametrize("started_in_a_range", [False, True])
def test_torch_profiler_has_the_memory_of_its_time_and_we_have_the_rest(
    started_in_a_range: bool,
) -> None:
    theirs = torch_profiler()
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
    with torch_profiler() as theirs:
        with observed(Extra.MEMORY) as run:
            assert not recorded(run)
        torch.ones(NUMBERS)
    assert reported_to(theirs).count(BYTES) == 2
    nothing_is_left()


def test_torch_profiler_in_one_thread_leaves_the_memory_of_the_others_to_us() -> None:
    profiling = threading.Event()
    done = threading.Event()

    def profiled() -> None:
        with torch_profiler():
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


def test_a_capture_that_stops_inside_an_operator_stops_recording_memory() -> None:
    with observed(Extra.MEMORY) as run:

        def work() -> None:
            run.stop()
            torch.ones(NUMBERS)

        inside_pytorch_operator(work)
        nothing_is_left()
        assert BYTES not in {event.nbytes for event in reports(run.events())}
