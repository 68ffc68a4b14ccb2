"""Ranges of ours in what PyTorch's own observers record, and once in what we record."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.profiler import ExecutionTraceObserver, ProfilerActivity  # noqa: E402

from otel_recfn import RecordScope, _native, profile, record_function, step  # noqa: E402
from otel_recfn.observing import (  # noqa: E402
    RecordFunction,
    RecordFunctionCallback,
    add_global_callback,
    record_function_enter_new,
    record_function_exit,
)

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("no_callbacks_left")]

Tree = list[tuple[str, list[Any]]]
"""Names, each with what lies in it."""


class Kineto:
    """torch.profiler."""

    def __init__(self, path: Path, **keywords: Any) -> None:
        self._path = path
        self._profile = torch.profiler.profile(activities=[ProfilerActivity.CPU], **keywords)
        self.start, self.stop = self._profile.start, self._profile.stop

    def tree(self) -> Tree:
        return tree_of([event for event in self._profile.events() if event.cpu_parent is None])

    def slices(self) -> list[dict[str, Any]]:
        """Of its Chrome trace."""
        self._profile.export_chrome_trace(str(self._path))
        events: list[dict[str, Any]] = json.loads(self._path.read_text())["traceEvents"]
        return [event for event in events if event["ph"] == "X"]


class Legacy:
    """The profiler of torch.autograd."""

    def __init__(self, _path: Path) -> None:
        from torch.autograd.profiler_legacy import profile as legacy

        self._profile = legacy()
        self.start = self._profile.__enter__
        self.stop = lambda: self._profile.__exit__(None, None, None)

    def tree(self) -> Tree:
        return tree_of(
            [event for event in self._profile.function_events if event.cpu_parent is None]
        )


class ExecutionTrace:
    """A file of nodes, each naming its parent."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._observer = ExecutionTraceObserver().register_callback(str(path))
        self.start = self._observer.start

    def stop(self) -> None:
        self._observer.stop()
        self._observer.unregister_callback()

    def tree(self) -> Tree:
        nodes = json.loads(self._path.read_text())["nodes"]
        parents = {node["id"]: node["ctrl_deps"] for node in nodes}
        roots = [
            node["id"]
            for node in nodes
            if "[pytorch|profiler|execution_trace|thread]" in node["name"]
        ]

        def below(parent: int) -> Tree:
            return [
                (node["name"], below(node["id"]))
                for node in nodes
                if parents[node["id"]] == parent != node["id"]
            ]

        return [each for root in roots for each in below(root)]


def tree_of(events: list[Any]) -> Tree:
    return [
        (event.name, tree_of(event.cpu_children))
        for event in sorted(events, key=lambda event: event.time_range.start)
    ]


def names(tree: Tree) -> list[str]:
    return [name for root, below in tree for name in (root, *names(below))]


def find(tree: Tree, name: str) -> Tree:
    """What lies in the one range of that name."""
    found = [below for root, below in tree if root == name]
    found += [inner for _, below in tree if name in names(below) for inner in [find(below, name)]]
    assert len(found) == 1
    return found[0]


@pytest.fixture(params=[Kineto, Legacy, ExecutionTrace])
def theirs(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return request.param(tmp_path / "trace.json")


@pytest.fixture
def kineto(tmp_path: Path) -> Kineto:
    return Kineto(tmp_path / "trace.json")


@contextmanager
def running(observer: Any) -> Iterator[None]:
    observer.start()
    try:
        yield
    finally:
        observer.stop()


@contextmanager
def nobody() -> Iterator[None]:
    yield None


def program() -> None:
    with record_function("outer", "batch 7"):
        torch.ones(2)
        with record_function("inner"):
            torch.neg(torch.ones(2))


@pytest.mark.parametrize("observed", [True, False])
def test_ranges_are_in_what_torchs_observers_record(theirs: Any, observed: bool) -> None:
    with profile() if observed else nobody() as ours, running(theirs):
        program()
    tree = theirs.tree()
    assert names(find(tree, "outer")).count("inner") == 1
    assert "aten::neg" in names(find(tree, "inner"))
    if ours is not None:
        rows = [event.name for event in ours.events()]
        assert (rows.count("outer"), rows.count("inner"), rows.count("aten::neg")) == (1, 1, 1)
    assert _native.range_observer() is None  # which callbacks/ set


def test_what_torchs_profiler_shows_is_what_it_shows_of_its_own_ranges(
    kineto: Kineto, tmp_path: Path
) -> None:
    with profile(), running(kineto):
        program()
    own = Kineto(tmp_path / "own.json")
    with running(own), torch.profiler.record_function("outer", "batch 7"):
        torch.ones(2)
        with torch.profiler.record_function("inner"):
            torch.neg(torch.ones(2))
    assert kineto.tree() == own.tree()
    category = {each["name"]: each["cat"] for each in kineto.slices()}
    assert (
        category["outer"]
        == category["inner"]
        == {each["name"]: each["cat"] for each in own.slices()}["outer"]
    )


def asynchronous() -> None:
    async def one(name: str) -> None:
        async with record_function(name):
            await asyncio.sleep(0)

    async def both() -> None:
        await asyncio.gather(one("first"), one("second"))

    asyncio.run(both())


@record_function("decorated")
def decorated() -> None:
    torch.ones(2)


@record_function("generated")
def generated() -> Iterator[int]:
    yield 1


def operation() -> None:
    record_function_exit(record_function_enter_new("entered"))


def range_of_scope() -> None:
    with RecordFunction(RecordScope.TORCHSCRIPT_FUNCTION) as range_:
        range_.before("scripted", sequence_nr=5)


def failing() -> None:
    with suppress(ValueError), record_function("fails"):
        raise ValueError


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (asynchronous, ["first", "second"]),
        (decorated, ["decorated"]),
        (lambda: list(generated()), ["generated"]),
        (operation, ["entered"]),
        (range_of_scope, ["scripted"]),
        (failing, ["fails"]),
    ],
)
def test_ranges_of_every_kind_are_there(
    kineto: Kineto, run: Callable[[], Any], expected: list[str]
) -> None:
    with profile() as ours, running(kineto):
        run()
    slices = [each["name"] for each in kineto.slices()]
    rows = [event.name for event in ours.events()]
    for name in expected:
        assert (slices.count(name), rows.count(name)) == (1, 1)


def test_callbacks_see_a_range_once(kineto: Kineto) -> None:
    seen: list[str] = []
    add_global_callback(RecordFunctionCallback(lambda range_: seen.append(range_.name())))
    with running(kineto):
        program()
    assert (seen.count("outer"), seen.count("inner"), seen.count("aten::neg")) == (1, 1, 1)
    assert names(kineto.tree()).count("outer") == 1


def test_neither_callbacks_nor_observers_see_a_step(kineto: Kineto) -> None:
    seen: list[str] = []
    add_global_callback(RecordFunctionCallback(lambda range_: seen.append(range_.name())))
    with profile() as ours, running(kineto), step("train"):
        program()
    assert "outer" in seen
    assert "train" not in {*seen, *names(kineto.tree())}
    assert "train" in [event.name for event in ours.events()]


def test_observers_may_start_and_stop_inside_a_range(theirs: Any) -> None:
    with profile() as ours:
        with record_function("begun before"):
            theirs.start()
            with record_function("whole"):
                pass
        with record_function("ends after"):
            theirs.stop()
    assert names(theirs.tree()).count("whole") == 1
    assert "begun before" not in names(theirs.tree())
    rows = [event.name for event in ours.events() if "record_function" not in event.name]
    assert [rows.count(name) for name in ("begun before", "whole", "ends after")] == [1, 1, 1]


def test_a_range_may_end_in_another_thread(theirs: Any) -> None:
    with profile() as ours, running(theirs):
        range_ = record_function("handed over")
        range_.__enter__()
        thread = threading.Thread(target=range_.__exit__, args=(None, None, None))
        thread.start()
        thread.join()
    assert [event.name for event in ours.events()].count("handed over") == 1


def test_ranges_reach_torchs_observers_where_ours_is_not_loaded(run_with_dynamo: Any) -> None:
    run_with_dynamo(
        """
import torch
from otel_recfn import record_function
from otel_recfn.pytorch.observer import loaded_library
with torch.profiler.profile() as theirs:
    with record_function("outer", "batch 7"):
        torch.neg(torch.ones(2))
assert loaded_library() is None
outer, = [event for event in theirs.events() if event.name == "outer"]
assert "aten::neg" in [child.name for child in outer.cpu_children], outer.cpu_children

class Looks(torch.utils._python_dispatch.TorchDispatchMode):
    seen = []
    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.seen.append(str(operator))
        return operator(*args, **(kwargs or {}))

with torch.profiler.profile():
    with Looks(), record_function("looked at"):
        torch.ones(2)
    traced = torch.jit.trace(record_function("traced")(lambda x: x + 1), torch.ones(2))
assert Looks.seen == ["aten.ones.default"], Looks.seen
assert "profiler" not in str(traced.graph), traced.graph
""",
        CXX="no compiler",
    )
