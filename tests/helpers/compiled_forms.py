"""Functions of a tensor that use ranges in every way a program might, and what torch.compile
makes of a function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from otel_recfn import RecordScope
from otel_recfn.model.batch import Event
from otel_recfn.model.events import EventSource

torch = pytest.importorskip("torch")
Function = Callable[[Any], Any]
FORMS: dict[str, Callable[[Any], Function]] = {}
"""By name: from a ``record_function`` to a function that uses it."""


def form(make: Callable[[Any], Function]) -> Callable[[Any], Function]:
    FORMS[make.__name__] = make
    return make


@form
def with_block(record_function: Any) -> Function:
    def function(x: Any) -> Any:
        with record_function("add"):
            y = x + 1
        return y * 2

    return function


@form
def name_as_keyword(record_function: Any) -> Function:
    def function(x: Any) -> Any:
        with record_function(name="add"):
            return x + 1

    return function


@form
def nested(record_function: Any) -> Function:
    def function(x: Any) -> Any:
        with record_function("outer"), record_function("middle"):
            x = x + 1
            with record_function("inner"):
                return x * 2

    return function


@form
def names_made_on_the_way(record_function: Any) -> Function:
    def function(x: Any) -> Any:
        for number in range(3):
            with record_function(f"step {number} of {tuple(x.shape)}"):
                x = x + number
        return x

    return function


@form
def decorated(record_function: Any) -> Function:
    @record_function("decorated")
    def function(x: Any) -> Any:
        return x + 1

    return function  # type: ignore[no-any-return]


@form
def calls_a_decorated_function(record_function: Any) -> Function:
    @record_function("decorated")
    def add(x: Any, much: int = 1, *, more: int = 0) -> Any:
        return x + much + more

    def function(x: Any) -> Any:
        return add(x, 2) * add(x, more=3)

    return function


@form
def decorated_methods(record_function: Any) -> Function:
    class Adder:
        @record_function("method")
        def add(self, x: Any) -> Any:
            return x + 1

        @classmethod
        @record_function("of the class")
        def twice(cls, x: Any) -> Any:
            return x * 2

    adder = Adder()

    def function(x: Any) -> Any:
        return adder.twice(adder.add(x))

    return function


@form
def in_a_module(record_function: Any) -> Function:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.range = record_function("kept")
            self.linear = torch.nn.Linear(2, 2)

        @record_function("forward")
        def forward(self, x: Any) -> Any:
            with self.range:
                return self.linear(x)

    return Net()


@form
def made_outside(record_function: Any) -> Function:
    ranges = [record_function("first"), record_function("second", "its arguments")]

    def function(x: Any) -> Any:
        for range_ in ranges:
            with range_:
                x = x + 1
        with ranges[0]:
            return x * 2

    return function


@dataclass
class Compiled:
    """What came of a compilation."""

    graphs: list[list[str]] = field(default_factory=list)
    """The calls of each."""
    error: BaseException | None = None
    result: Any = None

    @property
    def pieces(self) -> float:
        """Graphs; more than any where none was made."""
        return len(self.graphs) if self.graphs and self.error is None else float("inf")


def compiled(function: Function, *arguments: Any, fullgraph: bool = True) -> Compiled:
    """Compile the function and call it once."""
    found = Compiled()

    def backend(module: Any, _examples: Any) -> Any:
        found.graphs.append(
            [str(node.target) for node in module.graph.nodes if node.op.startswith("call")]
        )
        return module.forward

    torch._dynamo.reset()
    try:
        found.result = torch.compile(function, backend=backend, fullgraph=fullgraph)(*arguments)
    except Exception as error:
        found.error = error
    return found


VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
X = torch.ones(2, 2)
USER_SCOPE = RecordScope.USER_SCOPE
CAPTURE = "capture_profiler_record_function"
captures = pytest.mark.skipif(
    not hasattr(torch._dynamo.config, CAPTURE), reason="this PyTorch keeps ranges out of graphs"
)
every_form = pytest.mark.parametrize(
    "make", [pytest.param(make, id=name) for name, make in FORMS.items()]
)


def is_whole(found: Compiled) -> bool:
    if found.error is not None:
        raise found.error
    return len(found.graphs) == 1


def names(events: list[Event]) -> list[str]:
    """Of the ranges that the program made.

    PyTorch 2.4 announces the phases of compilations itself.
    """
    made = [
        event
        for event in events
        if event.scope == RecordScope.USER_SCOPE and event.source != EventSource.COMPILATION
    ]
    return [event.name for event in made if "dynamo_timed" not in event.name]
