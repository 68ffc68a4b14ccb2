"""The same program under torch.profiler(with_stack=True) and traced by us: the same calls, in each other as often."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from otel_recfn import profile
from trace_files import read_trace

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


class Network(torch.nn.Module):  # type: ignore[misc,unused-ignore]
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 2)

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
    expected, found = calls_of_training(tmp_path / "theirs.json"), calls_of_training(tmp_path / "ours.json")
    assert expected.total() > 500
    assert found == expected


def calls_of_training(path: Path) -> Counter[tuple[str, ...]]:
    """How often each call was made below ``Training.train``, by the names of the calls around it."""
    events = [event for event in read_trace(path)["traceEvents"] if event.get("cat") == "python_function"]
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
    """Theirs has the address of the object that a C method was bound to first, and numbers modules anew in each run."""
    return re.sub(r" at 0x[0-9a-f]+>", ">", name)
