"""The same program under torch.profiler(with_stack=True) and traced by us: the same calls, from
the same lines, as often.
"""

from __future__ import annotations

import gc
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from helpers.trace_files import read_trace
from otel_recfn import PythonCalls, profile
from otel_recfn.model.events import EventSource
from otel_recfn.support.code_names import python_call_name

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def no_collections() -> Iterator[None]:
    """Hypothesis has a function called at each, which only one of the two runs may have."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Dense(torch.nn.Linear):  # type: ignore[misc,unused-ignore]
    """Numbered apart from the layers that other tests have left alive, which torch.profiler doesn't
    count.
    """


class Network(torch.nn.Module):  # type: ignore[misc,unused-ignore]
    def __init__(self) -> None:
        super().__init__()
        self.first = Dense(4, 4)
        self.norm = torch.nn.LayerNorm(4)
        self.last = Dense(4, 2)

    def forward(self, batch: Any) -> Any:
        return self.last(self.norm(torch.relu(self.first(batch))))


def generated() -> Iterator[int]:
    yield from (len(str(number)) for number in range(3))


def failing(depth: int) -> None:
    if depth == 0:
        raise ValueError
    failing(depth - 1)


class Training:
    def __init__(self) -> None:
        self.network = Network()
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=0.1)

    def train(self) -> None:
        for _ in range(2):
            self.optimizer.zero_grad()
            self.network(torch.ones(3, 4)).sum().backward()
            self.optimizer.step()
        sorted(generated(), key=str)
        try:
            failing(5)
        except ValueError:
            pass


@pytest.mark.parametrize("modules", ["without modules", "with modules", "beside modules"])
def test_the_same_calls_as_torch_profiler(tmp_path: Path, modules: str) -> None:
    training = Training()
    training.train()  # what is imported and made at first use
    with torch.profiler.profile(with_stack=True, with_modules=True) as theirs:
        training.train()
    beside = profile(modules=True) if modules == "beside modules" else nullcontext()
    with beside, profile(python_calls=True, modules=modules == "with modules") as ours:
        training.train()
    theirs.export_chrome_trace(str(tmp_path / "theirs.json"))
    ours.export_chrome_trace(tmp_path / "ours.json")
    expected = training_calls(tmp_path / "theirs.json")
    found = training_calls(tmp_path / "ours.json")
    assert expected.total() > 500
    assert found == expected


@pytest.mark.parametrize("modules", [False, True])
def test_the_same_call_sites_as_torch_profiler(modules: bool) -> None:
    training = Training()
    training.train()
    with torch.profiler.profile(with_stack=True, with_modules=True) as theirs:
        training.train()
    with profile(python_calls=PythonCalls(call_sites=True), modules=modules) as ours:
        training.train()
    expected: Counter[tuple[str, ...]] = Counter()
    for root in theirs.profiler.kineto_results.experimental_event_tree():
        count_sites(root, (), expected)
    assert expected.total() > 500
    assert training_call_sites(ours.events()) == expected


def count_sites(event: Any, above: tuple[str, ...], counts: Counter[tuple[str, ...]]) -> None:
    """Of each call below ``Training.train``: the line that called it, before its own name and
    those of the calls around it.
    """
    caller = getattr(event.extra_fields, "caller", None)
    if caller is not None:
        above = (comparable(event.name), *above)
        if below_train(above):
            site = python_call_name(caller.file_name, caller.line_number, caller.function_name)
            counts[(site, *below_train(above))] += 1
    for child in event.children:
        count_sites(child, above, counts)


def training_call_sites(events: list[Any]) -> Counter[tuple[str, ...]]:
    """The same of ours."""
    by_id = {event.event_id: event for event in events}
    calls = {
        event.event_id
        for event in events
        if event.source == EventSource.PYTHON_CALL or event.name.startswith("nn.Module: ")
    }
    counts: Counter[tuple[str, ...]] = Counter()
    for event in events:
        above = []
        caller = event if event.event_id in calls else None
        while caller is not None:
            above.append(comparable(caller.name))
            caller = by_id.get(caller.caller)
        if below_train(tuple(above)):
            counts[(event.call_site, *below_train(tuple(above)))] += 1
    return counts


def below_train(names: tuple[str, ...]) -> tuple[str, ...]:
    """Up to the call of ``Training.train``; nothing for what isn't below it, as that call
    itself.
    """
    ends = [at for at, name in enumerate(names) if name.endswith(": train")]
    return names[: ends[0]] if ends else ()


def training_calls(path: Path) -> Counter[tuple[str, ...]]:
    """How often each call was made below ``Training.train``, by the names of the calls around
    it.
    """
    events = [
        event for event in read_trace(path)["traceEvents"] if event.get("cat") == "python_function"
    ]
    by_id = {event["args"]["Python id"]: event for event in events}

    def way(event: Any) -> tuple[str, ...]:
        names: list[str] = []
        while event is not None:
            names.append(comparable(event["name"]))
            if names[-1].endswith(": train"):
                return tuple(names)
            event = by_id.get(event["args"].get("Python parent id"))
        return ()

    counts = Counter(map(way, events))
    del counts[()]
    return counts


def comparable(name: str) -> str:
    """Theirs has the class and the address of the object that a C method was bound to first, as
    of a subclass of list.
    """
    return re.sub(r" of [^ ]+ object( at 0x[0-9a-f]+)?>", " of an object>", name)
