"""Event by event the same as torch.profiler, observing the same run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import pytest

from helpers.compared_profiles import assert_same_in_each_thread
from helpers.kineto import shapes_of
from helpers.timeouts import wait_until
from otel_recfn import record_function
from otel_recfn.model.batch import Event
from otel_recfn.model.events import NODES_PREFIX, EventSource, RecordScope

torch = pytest.importorskip("torch")
from torch.profiler import ProfilerActivity, profile  # noqa: E402

from helpers.kineto import all_threads_profile  # noqa: E402
from helpers.torch_programs import Training, run_together, scripted_programs  # noqa: E402

pytestmark = pytest.mark.torch
IN_TORCH = (EventSource.TORCH, EventSource.RECORD_FUNCTION)
"""Whose ranges PyTorch has: its own, and those that are told to it."""


DTYPES = {
    "float": "float32",
    "double": "float64",
    "long int": "int64",
    "int": "int32",
    "bool": "bool",
}


class Seen(NamedTuple):
    """What both say about a range."""

    name: str
    scope: int
    sequence_nr: int
    forward_thread_id: int
    ended_elsewhere: bool
    parent: int
    """Position of the enclosing range among the thread's ranges, -1 at top level."""
    shapes: list[Any]
    dtypes: list[Any]


Threads = dict[int, list[Seen]]
"""By logical thread id, in the order of the begins."""


class Run:
    """An observed run: our events, and the profile."""

    def __init__(self, ours: list[Event], profile: Any) -> None:
        self.events = ours
        self.ours = _ours(ours)
        self.theirs = _theirs(profile.profiler.kineto_results)

    def compare(self) -> None:
        """Thread by thread, event by event; and no other ranges."""
        assert_same_in_each_thread(self.ours, self.theirs)
        assert self.names() == Counter(
            one.name for ranges in self.theirs.values() for one in ranges
        )

    def names(self) -> Counter[str]:
        return Counter(one.name for ranges in self.ours.values() for one in ranges)

    def scopes(self) -> set[RecordScope]:
        return {RecordScope(one.scope) for ranges in self.ours.values() for one in ranges}


def _ours(events: list[Event]) -> Threads:
    """Without the ranges that PyTorch knows nothing of; what is inside them belongs to the range
    around them.
    """
    by_id = {event.event_id: event for event in events}

    def known_parent(event: Event) -> int:
        parent = by_id.get(event.parent)
        while parent is not None and parent.source not in IN_TORCH:
            parent = by_id.get(parent.parent)
        return parent.event_id if parent is not None else 0

    threads: Threads = {}
    positions = {0: -1}
    for event in sorted(events, key=lambda event: event.event_id):
        if event.source not in IN_TORCH:
            continue
        ranges = threads.setdefault(event.thread_id, [])
        positions[event.event_id] = len(ranges)
        place = (event.thread_id != event.end_thread.thread_id, positions[known_parent(event)])
        ids = (event.sequence_nr, event.forward_thread_id if event.sequence_nr >= 0 else 0)
        shapes = json.loads(event.shapes or "[]")
        dtypes = json.loads(event.dtypes or "[]")
        ranges.append(Seen(event.name, event.scope, *ids, *place, shapes, dtypes))
    return threads


def _theirs(results: Any) -> Threads:
    # Ids count the begins of each thread.
    ranges = sorted(results.events(), key=lambda event: event.correlation_id())
    parents = dict(_parents(results.experimental_event_tree()))
    threads: Threads = {}
    positions = {0: -1}
    for event in ranges:
        thread = threads.setdefault(event.start_thread_id(), [])
        positions[event.correlation_id()] = len(thread)
        ids = (event.sequence_nr(), event.fwd_thread_id())
        place = (
            event.start_thread_id() != event.end_thread_id(),
            positions[parents[event.correlation_id()]],
        )
        shapes = shapes_of(event)
        dtypes = _dtypes(event.dtypes())
        thread.append(Seen(event.name(), event.scope(), *ids, *place, shapes, dtypes))
    return threads


def _parents(nodes: Iterable[Any], parent: int = 0) -> Iterator[tuple[int, int]]:
    for node in nodes:
        yield node.correlation_id, parent
        yield from _parents(node.children, node.correlation_id)


def _dtypes(named: list[str]) -> list[str]:
    return [DTYPES.get(name, name) for name in named]


def without_inputs(run: Run) -> Run:
    """For profiles that did not record them."""
    for threads in (run.ours, run.theirs):
        for thread, ranges in threads.items():
            threads[thread] = [one._replace(shapes=[], dtypes=[]) for one in ranges]
    return run


def with_comparable_dtypes(run: Run) -> Run:
    """torch.profiler says TensorList without what is in it, and tells lists of numbers from
    none; we do the opposite.
    """

    def comparable(dtype: Any) -> Any:
        return "TensorList" if isinstance(dtype, list) else "" if dtype == "ScalarList" else dtype

    for threads in (run.ours, run.theirs):
        for thread, ranges in threads.items():
            threads[thread] = [
                one._replace(dtypes=[comparable(dtype) for dtype in one.dtypes]) for one in ranges
            ]
    return run


@pytest.fixture
def observe(instrument: Callable[..., Any]) -> Callable[..., Run]:
    """Runs a program under both observers, ours switched on first."""

    def observe(program: Callable[[Any], object], *, shapes: bool = False, **keywords: Any) -> Run:
        ours = instrument(record_shapes=shapes, **keywords)
        with all_threads_profile(shapes=shapes) as profiler:
            ours.forget()
            program(ours)
            events = ours.events()
        run = Run(events, profiler)
        return with_comparable_dtypes(run) if shapes else without_inputs(run)

    return observe


@pytest.fixture(scope="module")
def training() -> Training:
    training = Training()
    training.step()  # the first step makes the optimizer's state and the gradients
    return training


class TestTraining:
    @pytest.fixture(params=[True, False], ids=["shapes", "no shapes"])
    def run(
        self, request: pytest.FixtureRequest, observe: Callable[..., Run], training: Training
    ) -> Run:
        def two_steps(_ours: Any) -> None:
            training.step()
            training.step()

        return observe(two_steps, shapes=request.param)

    def test_the_same_events(self, run: Run) -> None:
        run.compare()
        assert sum(run.names().values()) > 500
        assert (
            run.names()["aten::scaled_dot_product_attention"]
            == run.names()["Optimizer.step#AdamW.step"]
            == 2
        )
        assert run.scopes() == {
            RecordScope.FUNCTION,
            RecordScope.BACKWARD_FUNCTION,
            RecordScope.USER_SCOPE,
        }

    def test_backward_ranges_say_which_forward(self, run: Run) -> None:
        backward = [event for event in run.events if event.scope == RecordScope.BACKWARD_FUNCTION]
        forward = {event.sequence_nr for event in run.events if event.scope == RecordScope.FUNCTION}
        nodes = [event for event in backward if event.name != "torch::autograd::AccumulateGrad"]
        assert nodes
        assert all(
            event.forward_thread_id == event.thread_id and event.sequence_nr in forward
            for event in nodes
        )


def test_ours_switched_on_inside_a_profile(
    instrument: Callable[..., Any], training: Training
) -> None:
    with all_threads_profile() as profiler:
        ours = instrument()
        training.step()
        events = ours.finish()
    without_inputs(Run(events, profiler)).compare()


@pytest.mark.parametrize("shapes", [True, False])
def test_torchscript(observe: Callable[..., Run], shapes: bool) -> None:
    network, fork_and_wait = scripted_programs()
    x = torch.ones(2, 3)
    for _ in range(4):  # PyTorch optimizes a script's graph in its first calls
        network(x), fork_and_wait(x)

    def program(ours: Any) -> None:
        for call in range(1, 4):
            fork_and_wait(x)
            # PyTorch lets the caller go on before it ends these ranges, maybe on another thread.
            ended = Counter({"fork_and_wait": call, "<forked function>": 2 * call})
            wait_until(lambda ended=ended: Counter(event.name for event in ours.events()) >= ended)
            network(x)

    run = observe(program, shapes=shapes)
    run.compare()
    assert RecordScope.TORCHSCRIPT_FUNCTION in run.scopes()
    assert run.names()["<forked function>"] == 6
    assert run.names()["forward"] >= 3


@pytest.mark.parametrize("shapes", [True, False])
def test_two_threads_at_once(observe: Callable[..., Run], shapes: bool) -> None:
    trainings = Training(), Training()
    run = observe(lambda _ours: run_together(*(one.step for one in trainings)), shapes=shapes)
    run.compare()
    ran = Counter(
        event.thread_id
        for event in run.events
        if event.name == "aten::scaled_dot_product_attention"
    )
    assert list(ran.values()) == [1, 1]


def test_backward_on_another_thread(observe: Callable[..., Run]) -> None:
    weight = torch.ones(3, requires_grad=True)

    def program(_ours: Any) -> None:
        loss = (weight * 2).sum()
        run_together(loss.backward)

    run = observe(program)
    run.compare()
    (forward,) = (
        event for event in run.events if event.name == "aten::mul" and event.sequence_nr >= 0
    )
    (backward,) = (event for event in run.events if event.name == "MulBackward0")
    assert (backward.sequence_nr, backward.forward_thread_id) == (
        forward.sequence_nr,
        forward.thread_id,
    )
    assert backward.thread_id != forward.thread_id


def test_ranges_of_the_user(observe: Callable[..., Run]) -> None:
    """Theirs and ours in each other: both see both."""
    x = torch.ones(3)

    def program(_ours: Any) -> None:
        with (
            torch.profiler.record_function("theirs"),
            record_function("ours"),
            torch.profiler.record_function("theirs inside ours"),
        ):
            torch.relu(x)
        with record_function("ours"):
            torch.relu(x)

    run = observe(program)
    run.compare()
    by_id = {event.event_id: event for event in run.events}

    def path(event: Event) -> list[str]:
        return [*(path(by_id[event.parent]) if event.parent else []), event.name]

    relus = [path(event) for event in run.events if event.name == "aten::relu"]
    assert relus == [["theirs", "ours", "theirs inside ours", "aten::relu"], ["ours", "aten::relu"]]
    assert {event.scope for event in run.events if event.name in ("theirs", "ours")} == {
        RecordScope.USER_SCOPE
    }


@pytest.mark.parametrize(
    "scope", [RecordScope.FUNCTION, RecordScope.BACKWARD_FUNCTION, RecordScope.USER_SCOPE]
)
def test_one_scope(observe: Callable[..., Run], training: Training, scope: RecordScope) -> None:
    run = observe(lambda _ours: training.step(), scopes={scope}, modules=False)
    for thread, ranges in run.theirs.items():
        selected = [told_of(one) for one in ranges if one.scope == scope]
        assert [told_of(one) for one in run.ours.get(thread, [])] == selected
    assert run.ours


def told_of(one: Seen) -> tuple[Any, ...]:
    """Without the numbers of a backward node on the range around it: without their scope, nodes
    aren't recorded.
    """
    return one[:2] if one.name.startswith(NODES_PREFIX) else one[:4]


def test_the_profile_is_what_it_is_without_us(instrument: Callable[..., Any]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    optimizer = torch.optim.AdamW(model.parameters())

    def profiled() -> list[tuple[Any, ...]]:
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
            optimizer.zero_grad()
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
        return [
            (one.name, one.scope, one.thread, one.input_shapes, parent and parent.name)
            for one in profiler.events()
            for parent in [one.cpu_parent]
        ]

    profiled()  # the first step makes the optimizer's state and the gradients
    before = profiled()
    ours = instrument()
    during = profiled()
    ours.finish()
    assert before == during == profiled()
