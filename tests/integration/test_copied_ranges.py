"""Programs copy and pickle blocks that hold ``record_function`` and ``step`` objects, also after
a first use.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from otel_recfn import InMemorySink, OtelRecordFunctionInstrumentor, record_function, step

COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{
        f"pickle {protocol}": lambda made, by=protocol: pickle.loads(pickle.dumps(made, by))
        for protocol in range(6)
    },
}
MAKES: dict[str, Callable[[], Any]] = {
    "a range": lambda: record_function("block", "of two"),
    "a step": lambda: step("block", 3),
    "a counted step": lambda: step("block"),
}


@pytest.fixture(params=[True, False], ids=["instrumented", "not instrumented"])
def sink(request: pytest.FixtureRequest) -> Iterator[InMemorySink | None]:
    if not request.param:
        yield None
        return
    sink = InMemorySink()
    instrumentor = OtelRecordFunctionInstrumentor()
    instrumentor.instrument(sinks=[sink], modules=False)
    yield sink
    instrumentor.uninstrument()


def recorded(sink: InMemorySink | None) -> list[str] | None:
    """By their begins."""
    if sink is None:
        return None
    OtelRecordFunctionInstrumentor().flush()
    return [event.name for event in sorted(sink.events(), key=lambda event: event.event_id)]


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
class TestCopies:
    def test_of_a_new_one(
        self, copied: Callable[[Any], Any], make: Callable[[], Any], sink: InMemorySink | None
    ) -> None:
        made = make()
        other = copied(made)
        assert (type(other), repr(other), other is made) == (type(made), repr(made), False)
        with made, other:
            pass
        assert recorded(sink) in (None, ["block"] * 2)

    def test_of_one_that_is_open(
        self, copied: Callable[[Any], Any], make: Callable[[], Any], sink: InMemorySink | None
    ) -> None:
        made = make()
        with made:
            other = copied(made)
            with other, made:
                pass
            other.__exit__(None, None, None)  # it is not open, and ends nothing of the other's
            with record_function("inside"):
                pass
        assert recorded(sink) in (None, ["block", "block", "block", "inside"])
        if sink is not None:
            by_id = {event.event_id: event for event in sink.events()}
            [inside] = [event for event in by_id.values() if event.name == "inside"]
            assert by_id[inside.parent].parent == 0


@record_function("decorated")
def decorated(value: int) -> int:
    return value + 1


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_copies_of_decorated_functions(
    copied: Callable[[Any], Any], sink: InMemorySink | None
) -> None:
    assert copied(decorated)(1) == 2
    assert recorded(sink) in (None, ["decorated"])


@pytest.mark.torch
def test_blocks_of_a_model(sink: InMemorySink | None) -> None:
    torch = pytest.importorskip("torch")

    class Layer(torch.nn.TransformerEncoderLayer):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__(4, 1, 4, batch_first=True)
            self.range = record_function("layer")
            self.step = step("layer step", 1)

        def forward(self, *values: Any, **keywords: Any) -> Any:
            with self.range, self.step:
                return super().forward(*values, **keywords)

    layer = Layer()
    layer(torch.ones(1, 2, 4))
    encoder = torch.nn.TransformerEncoder(layer, 2)
    encoder(torch.ones(1, 2, 4))
    averaged = torch.optim.swa_utils.AveragedModel(encoder)
    averaged(torch.ones(1, 2, 4))
    found = recorded(sink)
    assert found is None or (found.count("layer"), found.count("layer step")) == (5, 5)
