"""What a ``torch.futures.Future`` calls back lies in what was current where the future was given it, in whichever thread."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from exported_traces import Traces  # noqa: E402
from opentelemetry import trace  # noqa: E402

from otel_recfn import record_function  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("needs_observer")]
METHODS = ("then", "add_done_callback")


@pytest.fixture
def traces() -> Iterator[Traces]:
    """An instrumented program of which every range becomes a span."""
    made = Traces()
    yield made
    made.instrumentor.uninstrument()


def complete(future: Any, value: object = 1) -> None:
    """In another thread."""
    other = threading.Thread(target=future.set_result, args=(value,), name="completing")
    other.start()
    other.join()


def current() -> int:
    return trace.get_current_span().get_span_context().span_id


@pytest.mark.parametrize("method", METHODS)
def test_in_the_span_or_range_of_whoever_asked_for_the_callback(traces: Traces, method: str) -> None:
    waiting, expected, seen = [torch.futures.Future() for _ in range(3)], [], []

    def called_back(_future: Any) -> None:
        torch.cos(traces.x)
        seen.append(current())

    for name, future in zip(("one", "other"), waiting, strict=False):
        with traces.tracer.start_as_current_span(name), record_function("range"):
            getattr(future, method)(called_back)
            expected.append(current())
    getattr(waiting[2], method)(called_back)
    for future in waiting:
        complete(future)
    assert seen == [*expected, 0]
    found = Counter(path for path in traces.all_paths().elements() if path.endswith("aten::cos"))
    assert found == {"one/range/aten::cos": 1, "other/range/aten::cos": 1, "completing/aten::cos": 1}


def test_a_chain_of_callbacks(traces: Traces) -> None:
    future = torch.futures.Future()
    with traces.tracer.start_as_current_span("request"):
        last = future.then(lambda done: torch.cos(done.value())).then(lambda done: torch.sin(done.value()))
    complete(future, traces.x)
    assert torch.equal(last.wait(), torch.sin(torch.cos(traces.x)))
    paths = traces.all_paths()
    assert [paths["request/aten::cos"], paths["request/aten::sin"]] == [1, 1]


def test_collectives(traces: Traces, tmp_path: Path) -> None:
    """Some of them call back in gloo's thread, some at once."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_gloo_available()):
        pytest.skip("this torch has no gloo")
    many = torch.ones(100_000)
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1)
    try:
        for _ in range(50):
            with traces.tracer.start_as_current_span("step"):
                distributed.all_reduce(many, async_op=True).get_future().then(lambda _: torch.cos(traces.x)).wait()
    finally:
        distributed.destroy_process_group()
    assert traces.all_paths()["step/aten::cos"] == 50


def test_pytorchs_own_methods_are_put_back() -> None:
    theirs = {method: vars(torch._C.Future)[method] for method in METHODS}
    traces = Traces()
    for method in METHODS:
        assert vars(torch._C.Future)[method] is not theirs[method]
    traces.instrumentor.uninstrument()
    assert {method: vars(torch._C.Future)[method] for method in METHODS} == theirs
