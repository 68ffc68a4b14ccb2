"""Our legacy profiler and PyTorch's at once: the same events in the same order, thread by
thread.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from otel_recfn.legacy import (
    LegacyEvent,
    ProfilerConfig,
    ProfilerState,
    disable_profiler_legacy,
    enable_profiler_legacy,
    torch_records,
)
from otel_recfn.model.events import NODES_PREFIX, RecordScope

torch = pytest.importorskip("torch")

from helpers.compared_profiles import assert_same_in_each_thread  # noqa: E402
from helpers.torch_programs import Training, run_together, scripted_programs  # noqa: E402

pytestmark = pytest.mark.torch

pytest.importorskip(
    "torch.autograd.profiler_legacy", reason="this torch has no legacy profiler any more"
)


class Seen(NamedTuple):
    """What both say about an event; a pop knows little."""

    kind: str
    name: str
    thread_id: int
    handle: int
    node_id: int
    shapes: list[list[int]]
    sequence_nr: int
    fwd_thread_id: int
    scope: int
    is_async: bool
    flops: int
    cpu_memory_usage: int


Threads = dict[int, list[Seen]]


class Both:
    """A program under both profilers, ours inside."""

    def __init__(self, program: Callable[[], object], **settings: bool) -> None:
        config = ProfilerConfig(ProfilerState.CPU, **settings)
        with theirs_enabled(config) as self.their_lists:
            enable_profiler_legacy(config)
            program()
            self.our_lists = disable_profiler_legacy()
        self.ours, self.theirs = (
            by_thread(map_lists(ours, self.our_lists)),
            by_thread(map_lists(theirs, self.their_lists)),
        )

    def compare(self) -> None:
        assert_same_in_each_thread(self.ours, self.theirs)

    def pushes(self) -> list[Seen]:
        return [event for events in self.ours.values() for event in events if event.kind == "push"]


class theirs_enabled:
    """Their profiler, as ``torch.autograd.profiler_legacy.profile`` runs it."""

    def __init__(self, config: ProfilerConfig) -> None:
        from torch._C._profiler import _ExperimentalConfig
        from torch.autograd import ProfilerConfig as TheirConfig
        from torch.autograd import ProfilerState as TheirState

        asked = (
            config.report_input_shapes,
            config.profile_memory,
            config.with_stack,
            config.with_flops,
            False,
        )
        self._config = TheirConfig(TheirState.CPU, *asked, _ExperimentalConfig())
        self._lists: list[list[Any]] = []

    def __enter__(self) -> list[list[Any]]:
        torch.autograd._enable_profiler_legacy(self._config)
        return self._lists

    def __exit__(self, *_error: object) -> None:
        self._lists += torch.autograd._disable_profiler_legacy()


def map_lists(seen: Callable[[Any], Seen], lists: list[list[Any]]) -> Iterator[list[Seen]]:
    for events in lists:
        yield [seen(event) for event in events]


def by_thread(lists: Iterator[list[Seen]]) -> Threads:
    """Without marks: each has its own."""
    found = ([event for event in events if event.kind != "mark"] for events in lists)
    return {events[0].thread_id: events for events in found if events}


def ours(event: LegacyEvent) -> Seen:
    shapes = [list(shape) for shape in event.shapes]
    # Which has the node's number, as in PyTorch's newer profiler alone.
    around_node = event.name.startswith(NODES_PREFIX)
    sequence_nr = -1 if around_node else event.sequence_nr
    forward = event.fwd_thread_id if sequence_nr >= 0 else 0
    place = (event.kind_str, event.name, event.thread_id, event.handle, event.node_id, shapes)
    return Seen(
        *place,
        sequence_nr,
        forward,
        event.scope,
        event.is_async,
        event.flops,
        event.cpu_memory_usage,
    )


def theirs(event: Any) -> Seen:
    sequence_nr = event.sequence_nr()
    forward = event.fwd_thread_id() if sequence_nr >= 0 else 0
    place = (
        event.kind(),
        event.name(),
        event.thread_id(),
        event.handle(),
        event.node_id(),
        event.shapes(),
    )
    return Seen(
        *place,
        sequence_nr,
        forward,
        event.scope(),
        event.is_async(),
        event.flops(),
        event.cpu_memory_usage(),
    )


@pytest.fixture(scope="module")
def training() -> Training:
    training = Training()
    training.step()  # the first step makes the optimizer's state and the gradients
    return training


SETTINGS: dict[str, dict[str, bool]] = {
    "plain": {},
    "shapes": {"report_input_shapes": True},
    "everything": {"report_input_shapes": True, "with_flops": True, "with_stack": True},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_training_steps(training: Training, settings: dict[str, bool]) -> None:
    both = Both(lambda: (training.step(), training.step()), **settings)
    both.compare()
    assert len(both.pushes()) > 500
    assert {event.scope for event in both.pushes()} == {
        RecordScope.FUNCTION,
        RecordScope.BACKWARD_FUNCTION,
        RecordScope.USER_SCOPE,
    }


def memory(threads: Threads) -> list[list[tuple[str, int]]]:
    """Of each thread: the innermost range's name, and bytes that were allocated there (negative:
    freed).
    """
    return [list(memory_of(events)) for events in threads.values()]


def memory_of(events: list[Seen]) -> Iterator[tuple[str, int]]:
    inside = [""]
    for event in events:
        if event.kind == "push":
            inside.append(event.name)
        elif event.kind == "pop":
            inside.pop()
        else:
            yield inside[-1], event.cpu_memory_usage


def test_memory_is_theirs_within_operators_and_between_them(training: Training) -> None:
    """One after the other: PyTorch reports memory to one profiler of a thread."""

    def program() -> None:
        training.step()
        training.optimizer.zero_grad()  # nothing of it stays, whose end the next one would see

    config = ProfilerConfig(ProfilerState.CPU, profile_memory=True)
    program()
    with theirs_enabled(config) as their_lists:
        program()
    enable_profiler_legacy(config)
    program()
    mine = memory(by_thread(map_lists(ours, disable_profiler_legacy())))
    assert mine == memory(by_thread(map_lists(theirs, their_lists)))
    reports = [report for thread in mine for report in thread]
    assert len(reports) > 200
    assert any(name == "" and nbytes < 0 for name, nbytes in reports)


def test_events_come_back_from_their_values(training: Training) -> None:
    enable_profiler_legacy(
        ProfilerConfig(ProfilerState.CPU, **SETTINGS["everything"], profile_memory=True)
    )
    training.step()
    events = [event for events in disable_profiler_legacy() for event in events]
    assert [LegacyEvent.from_value_list(event.to_value_list()) for event in events] == events
    complete = [
        event
        for event in events
        if event.sequence_nr >= 0 and event.stack and event.flops and event.extra_args
    ]
    assert complete, "an operator of which there is all that goes along"


def test_stacks_are_theirs(training: Training) -> None:
    both = Both(training.step, with_stack=True)
    here = {
        event.event_id: list(event.stack)
        for events in both.our_lists
        for event in events
        if event.kind_str == "push"
    }
    there = [
        list(event.stack())
        for events in both.their_lists
        for event in events
        if event.kind() == "push"
    ]
    assert list(here.values()) == there
    assert any("test_legacy_against_torch.py" in line for stack in there for line in stack)


def test_backward_on_another_thread_is_not_in_the_run_unless_launched() -> None:
    weight = torch.ones(3, requires_grad=True)

    def program() -> None:
        loss = (weight * 2).sum()
        run_together(loss.backward)

    both = Both(program)
    both.compare()
    assert "MulBackward0" not in {event.name for event in both.pushes()}


def test_torchscript_forks_belong_to_the_run() -> None:
    _, fork_and_wait = scripted_programs()
    x = torch.ones(2, 3)
    for _ in range(4):  # PyTorch optimizes a script's graph in its first calls
        fork_and_wait(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        both = Both(lambda: fork_and_wait(x))
    forked = [event.name for event in both.pushes()].count("<forked function>")
    assert (
        forked
        == [event.name for events in both.theirs.values() for event in events].count(
            "<forked function>"
        )
        == 2
    )


def test_their_parser_reads_our_events(training: Training) -> None:
    """``torch.autograd.profiler_legacy.profile`` makes the same names, ids and nesting of our
    events as of its own.
    """
    from torch.autograd.profiler_legacy import _parse_legacy_records
    from torch.autograd.profiler_util import EventList

    def parsed(lists: list[list[Any]]) -> list[tuple[Any, ...]]:
        events = EventList(_parse_legacy_records(lists), use_device=None)
        events._build_tree()
        return [
            (event.name, event.thread, event.id, event.cpu_parent and event.cpu_parent.id)
            for event in events
        ]

    both = Both(training.step, report_input_shapes=True)
    assert parsed(torch_records(both.our_lists)) == parsed(both.their_lists)


@pytest.mark.parametrize("shapes", [True, False])
def test_events_say_what_flops_were_counted_from(shapes: bool) -> None:
    x = torch.ones(2, 3)
    batch = torch.ones(4, 2, 3)

    def program() -> None:
        torch.neg(x + x)
        torch.addmm(torch.ones(2), x, x.t())
        torch.bmm(batch, batch.transpose(1, 2))
        torch.nn.functional.conv2d(
            torch.ones(1, 2, 5, 5), torch.ones(4, 1, 3, 3), stride=2, padding=(1, 0), groups=2
        )

    config = ProfilerConfig(ProfilerState.CPU, report_input_shapes=shapes, with_flops=True)
    enable_profiler_legacy(config)
    program()
    (events,) = disable_profiler_legacy()
    convolution = {"stride": [2, 2], "padding": [1, 0], "dilation": [1, 1], "groups": 2}
    assert {event.name: event.extra_args for event in events if event.flops} == {
        "aten::add": {"mat_size": [2, 3]},
        "aten::addmm": {"mat1_size": [2, 3], "mat2_size": [3, 2]},
        "aten::bmm": {"mat1_size": [4, 2, 3], "mat2_size": [4, 3, 2]},
        "aten::conv2d": {"input_size": [1, 2, 5, 5], "weight_size": [4, 1, 3, 3], **convolution},
    }
    assert all(event.extra_args == {} for event in events if not event.flops)
    assert any(event.shapes for event in events) == shapes


def test_records_for_their_parser_have_what_theirs_have() -> None:
    """Whatever PyTorch's binding of its event offers, with values of the same types."""
    both = Both(lambda: torch.neg(torch.ones(2)), report_input_shapes=True)
    (theirs,) = both.their_lists
    (ours,) = torch_records(both.our_lists)
    accessors = [
        name
        for name in dir(theirs[0])
        if not name.startswith("_") and not name.endswith("elapsed_us")
    ]
    for name in accessors:
        for their, our in zip(theirs, ours, strict=True):
            assert type(getattr(our, name)()) is type(getattr(their, name)())
    assert [record.shapes() for record in ours] == [record.shapes() for record in theirs]
