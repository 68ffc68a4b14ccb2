"""Operators belong to the profiler run of whoever launched them, in whatever thread PyTorch runs them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from patience import PATIENCE_S

torch = pytest.importorskip("torch")

from observed import Observed, observed  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402
from torch_programs import run_together, scripted_programs  # noqa: E402

from otel_recfn.model.batch import Event  # noqa: E402
from otel_recfn.pytorch.observer import set_profiler  # noqa: E402
from otel_recfn.sources.protocol import Wanted  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("needs_observer")]

RUN = 2**32 - 1
"""The largest there is."""


@contextmanager
def belonging(run: Observed, profiler: int) -> Iterator[None]:
    """What this thread does, and what is done for it, is a profiler run's."""
    run.observer.enable(Wanted(profilers=True))
    belong(run, profiler)
    try:
        yield
    finally:
        belong(run, 0)
        run.observer.enable(Wanted())


def belong(run: Observed, profiler: int) -> None:
    """Both are told, as the legacy profiler does: PyTorch carries it on; in this thread the recorder doesn't wait for a range
    outside every other, of which there is none while TorchScript's last one is still being ended by another thread."""
    run.recorder.set_profiler(profiler)
    set_profiler(profiler)


def runs_of(events: list[Event], name: str) -> set[int]:
    return {event.profiler for event in events if event.name == name}


def test_operators_on_a_thread_that_torchscript_forks_belong_to_the_run_of_the_thread_that_forked() -> None:
    fork_and_wait = scripted_programs()[1]
    with observed() as run:
        fork_and_wait(torch.ones(3))
        assert runs_of(run.events(), "aten::relu") == {0}
        with belonging(run, RUN):
            fork_and_wait(torch.ones(3))
        events = run.events()
        assert len({event.thread_id for event in events}) > 1
        assert {event.profiler for event in events if event.scope == 0} == {RUN}
        fork_and_wait(torch.ones(3))
        assert runs_of(run.events(), "aten::relu") == {0}


def test_a_backward_pass_that_autograd_runs_in_a_thread_of_its_own_belongs_to_the_run_that_asked_for_it() -> None:
    class Nested(torch.autograd.Function):  # type: ignore[misc]
        """Its backward starts a backward pass again, so deep that autograd takes another thread for it."""

        @staticmethod
        def forward(context: object, x: torch.Tensor, depth: int) -> torch.Tensor:
            context.depth = depth  # type: ignore[attr-defined]
            return x * 2

        @staticmethod
        def backward(context: object, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
            if context.depth > 0:  # type: ignore[attr-defined]
                with torch.enable_grad():
                    x = torch.ones(2, requires_grad=True)
                    Nested.apply(x, context.depth - 1).sum().backward()  # type: ignore[attr-defined, no-untyped-call]
            return gradient * 2, None

    with observed() as run, belonging(run, 7):
        Nested.apply(torch.ones(2, requires_grad=True), 70).sum().backward()  # type: ignore[no-untyped-call]
        events = run.events()
    backward = [event for event in events if event.scope == 1]
    assert len({event.thread_id for event in backward}) > 1
    assert {event.profiler for event in backward} == {7}


def test_a_thread_that_has_nothing_to_do_with_the_run_does_not_belong_to_it() -> None:
    started, done = threading.Event(), threading.Event()

    def profiled(run: Observed) -> None:
        with belonging(run, 5):
            started.set()
            (torch.ones(2, requires_grad=True) * 2).sum().backward()
            assert done.wait(PATIENCE_S)

    def unrelated() -> None:
        assert started.wait(PATIENCE_S)
        torch.ones(2).cos()
        done.set()

    with observed() as run:
        run_together(lambda: profiled(run), unrelated)
        events = run.events()
    assert runs_of(events, "aten::cos") == {0}
    assert runs_of(events, "aten::mul") == {5}
    assert {event.profiler for event in events if event.scope == 1} == {5}


def test_callbacks_that_others_add_to_the_thread_stay_and_a_new_run_takes_the_place_of_the_earlier() -> None:
    with observed() as run, belonging(run, 1):
        with profile(activities=[ProfilerActivity.CPU]) as theirs:
            belong(run, 2)
            torch.ones(2).cos()
        torch.ones(2).sin()
        events = run.events()
    assert runs_of(events, "aten::cos") == runs_of(events, "aten::sin") == {2}
    assert "aten::cos" in {event.name for event in theirs.events()}
