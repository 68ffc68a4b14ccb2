"""``profile()`` and ``torch.autograd.profiler_legacy.profile`` at once, of the same program: the same ranges."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from otel_recfn import profile
from otel_recfn.profiling import ProfiledEvent

torch = pytest.importorskip("torch")

from torch_programs import Training, reentrant_training  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("needs_observer")]

profiler_legacy = pytest.importorskip("torch.autograd.profiler_legacy", reason="this torch has no legacy profiler any more")


class Range(NamedTuple):
    """What both say about a range; ``parent`` is its parent's handle."""

    handle: int
    name: str
    scope: int
    thread: int
    sequence_nr: int
    forward_thread: int
    shapes: list[list[int]]
    flops: int
    parent: int


def ours(prof: profile, their_ranges: list[Range]) -> list[Range]:
    """In the order of their handles, of the threads that took part in their run alone: ours sees OpenMP's workers too."""
    events = {event.event_id: event for event in prof.events()}
    threads = {each.thread for each in their_ranges}
    kept = [event for event in events.values() if event.thread_id in threads and not repeats_its_parent(event, events)]
    return sorted(ours_range(event, events) for event in kept)


def repeats_its_parent(event: ProfiledEvent, events: dict[int, ProfiledEvent]) -> bool:
    """An operator that dispatches to itself begins right after its namesake; their parser takes it for logged twice."""
    parent = events.get(event.parent)
    return parent is not None and parent.name == event.name and parent.handle + 1 == event.handle


def ours_range(event: ProfiledEvent, events: dict[int, ProfiledEvent]) -> Range:
    parent = events.get(event.parent)
    while parent is not None and repeats_its_parent(parent, events):
        parent = events[parent.parent]
    if parent is not None and parent.thread_id != event.thread_id:
        parent = None  # what another thread works for: theirs nest within a thread
    forward = event.forward_thread_id if event.sequence_nr >= 0 else 0
    place = (event.handle, event.name, int(event.scope), event.thread_id, event.sequence_nr, forward)
    shapes = [flat(shape) for shape in json.loads(event.shapes or "[]")]
    return Range(*place, shapes, event.flops, parent.handle if parent is not None else 0)


def flat(shape: list[Any]) -> list[int]:
    """A tensor's shape; theirs say nothing about lists of tensors."""
    return shape if all(isinstance(size, int) for size in shape) else []


def theirs(prof: Any) -> list[Range]:
    return sorted(their_range(event) for event in prof.function_events)


def their_range(event: Any) -> Range:
    parent = event.cpu_parent.id if event.cpu_parent is not None else 0
    forward = event.fwd_thread if event.sequence_nr >= 0 else 0
    shapes = event.input_shapes or []
    return Range(event.id, event.name, event.scope, event.thread, event.sequence_nr, forward, shapes, event.flops or 0, parent)


@pytest.fixture(scope="module")
def training() -> Training:
    training = Training()
    training.step()  # the first step makes the optimizer's state and the gradients
    return training


def profiled_by_both(program: Callable[[], object], **settings: bool) -> tuple[profile, Any]:
    """Our profile and theirs."""
    with profiler_legacy.profile(**settings) as their_profile, profile(**settings, modules=False) as our_profile:
        program()
    return our_profile, their_profile


SETTINGS: dict[str, dict[str, bool]] = {
    "plain": {},
    "shapes": {"record_shapes": True},
    "flops": {"record_shapes": True, "with_flops": True},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_training_steps_have_the_same_ranges(training: Training, settings: dict[str, bool]) -> None:
    our_profile, their_profile = profiled_by_both(lambda: (training.step(), training.step()), **settings)
    expected = theirs(their_profile)
    assert len(expected) > 500
    assert ours(our_profile, expected) == expected


def test_a_backward_pass_that_goes_on_in_further_threads_has_the_same_ranges() -> None:
    our_profile, their_profile = profiled_by_both(lambda: reentrant_training(torch.tensor(70.0, requires_grad=True)))
    expected = theirs(their_profile)
    assert len({each.thread for each in expected}) > 1
    assert ours(our_profile, expected) == expected


def test_averages_have_the_same_counts_and_flops() -> None:
    layers = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(144, 5))
    image = torch.ones(2, 3, 8, 8)
    our_profile, their_profile = profiled_by_both(lambda: layers(image) * 2 + 1, record_shapes=True, with_flops=True)
    mine = {each.key: (each.count, each.flops) for each in our_profile.key_averages()}
    assert mine == {each.key: (each.count, each.flops or 0) for each in their_profile.key_averages()}
    assert {"aten::conv2d", "aten::addmm", "aten::mul", "aten::add"} <= {name for name, (_, flops) in mine.items() if flops}


def test_trees_have_the_same_times_as_the_averages(training: Training) -> None:
    with profile(modules=True) as prof:
        training.step()
    whole = prof.key_averages().self_cpu_time_total
    for by in ("name", "thread", "module"):
        assert sum(one.self_cpu_time_total for one in prof.tree(by)) == pytest.approx(whole)
    modules = [one.path for one in prof.tree("module")]
    assert any(len(path) > 1 for path in modules)
