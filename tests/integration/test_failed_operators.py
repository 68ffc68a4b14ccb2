"""Operators that an exception leaves have failed, and PyTorch's own record_function; not what
merely ran meanwhile.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan

from helpers.exported_traces import Traces
from otel_recfn import OtelRecordFunctionInstrumentor, profile
from otel_recfn.model.events import EventFlag

torch = pytest.importorskip("torch")

from helpers.torch_programs import scripted  # noqa: E402

pytestmark = pytest.mark.torch

UNKNOWN = "_OTHER"

torch_range = torch.profiler.record_function


def multiply() -> None:
    """Two matrices that don't fit, which ``aten::mm`` says."""
    torch.ones(2, 3) @ torch.ones(2, 3)


def failed(spans: list[ReadableSpan]) -> dict[str, Any]:
    """The types of the errors, by the names of spans that failed."""
    return {
        span.name: (span.attributes or {})["error.type"]
        for span in spans
        if span.status.status_code is trace.StatusCode.ERROR
    }


def fails(work: Callable[[], object], error: type[BaseException] = RuntimeError) -> None:
    with pytest.raises(error):
        work()


class TestOperators:
    def test_one_that_raises_and_what_calls_it(self, traces: Traces) -> None:
        traces.serve(lambda: fails(multiply))
        spans = traces.spans()
        assert failed(spans) == {"aten::matmul": UNKNOWN, "aten::mm": UNKNOWN}
        assert {"aten::ones"} <= {span.name for span in spans}

    def test_its_span_is_kept_where_few_are(self) -> None:
        traces = Traces(budgets={}, detail="low")

        def work() -> None:
            for _ in range(2_000):
                torch.neg(traces.x)
            fails(multiply)

        traces.serve(work)
        assert failed(traces.spans()) == {"aten::matmul": UNKNOWN, "aten::mm": UNKNOWN}
        traces.instrumentor.uninstrument()

    def test_one_that_is_written_in_python(self, traces: Traces) -> None:
        @torch.library.custom_op("recfn_tests::refuses", mutates_args=())
        def refuses(x: torch.Tensor) -> torch.Tensor:
            raise KeyError("no such thing")

        traces.serve(lambda: fails(lambda: refuses(traces.x), KeyError))
        assert failed(traces.spans()) == {"recfn_tests::refuses": UNKNOWN}

    def test_by_an_exception_of_pythons_that_is_still_raised_then(self, traces: Traces) -> None:
        traces.serve(lambda: multiply_that_drops(lambda: None))
        (span,) = [span for span in traces.spans() if span.name == "aten::mul"]
        assert failed([span]) == {"aten::mul": "ValueError"}
        (event,) = span.events
        assert "in pack" in event.attributes["exception.stacktrace"]

    def test_in_profiles_too(self) -> None:
        with profile() as prof:
            fails(multiply)
            torch.neg(torch.ones(1))
        errors = {
            event.name: event.error for event in prof.events() if event.flags & EventFlag.ERROR
        }
        assert {name: error.partition(":")[0] for name, error in errors.items()} == dict.fromkeys(
            ["aten::matmul", "aten::mm"], UNKNOWN
        )

    def test_in_a_backward_pass(self, traces: Traces) -> None:
        class Refuses(torch.autograd.Function):  # type: ignore[misc]
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                return x * 1

            @staticmethod
            def backward(ctx: Any, gradient: Any) -> Any:
                raise LookupError("no gradient")

        x = torch.ones(2, requires_grad=True)
        traces.serve(lambda: fails(lambda: Refuses.apply(x).sum().backward(), LookupError))
        assert "RefusesBackward" in {name.rpartition(" ")[2] for name in failed(traces.spans())}

    def test_in_torchscript(self, traces: Traces) -> None:
        def scripted_multiply(x: torch.Tensor) -> torch.Tensor:
            return torch.mm(x, x)

        program = scripted(scripted_multiply)
        traces.serve(lambda: fails(lambda: program(torch.ones(2, 3))))
        assert {"scripted_multiply", "aten::mm"} <= set(failed(traces.spans()))


def test_what_is_tried_while_torch_compile_compiles_has_not_failed() -> None:
    def tried(x: Any) -> Any:
        return x @ x

    with profile() as prof, pytest.raises(Exception, match="reduction dim"):
        torch.compile(tried, backend="eager")(torch.ones(2, 3))
    torch._dynamo.reset()
    flags = {event.name: event.flags for event in prof.events()}
    assert (
        flags["aten::mm"] & (EventFlag.IN_COMPILATION | EventFlag.ERROR) == EventFlag.IN_COMPILATION
    )
    assert flags["torch.compile: tried"] & EventFlag.ERROR


class RunsWhenItGoes:
    """Does its work where the last reference to it is dropped."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work

    def __del__(self) -> None:
        self._work()


def multiply_that_drops(work: Callable[[], object]) -> None:
    """An operator saves two tensors, of which the second can't be saved: the work is done as it
    is unwound.
    """
    packed: list[None] = []

    def pack(_saved: Any) -> RunsWhenItGoes:
        packed.append(None)
        if len(packed) == 2:
            raise ValueError("can't be saved")
        return RunsWhenItGoes(work)

    x = torch.ones(2, requires_grad=True)
    y = torch.ones(2, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed):
        fails(lambda: torch.mul(x, y), ValueError)


class TestUnwinding:
    """While an operator is unwound, others run."""

    def test_what_runs_then_has_not_failed(self, traces: Traces) -> None:
        ran: list[str] = []

        def work() -> None:
            with torch.no_grad():
                torch.neg(traces.x)
                with torch.profiler.record_function("inside"):
                    torch.cos(traces.x)
            ran.append(threading.current_thread().name)

        traces.serve(lambda: multiply_that_drops(work))
        spans = traces.spans()
        assert ran == [threading.current_thread().name]
        assert {"aten::neg", "aten::cos", "inside"} <= {span.name for span in spans}
        assert failed(spans) == {"aten::mul": "ValueError"}

    def test_what_fails_then_has(self, traces: Traces) -> None:
        def work() -> None:
            with torch.no_grad(), contextlib.suppress(RuntimeError):
                multiply()

        traces.serve(lambda: multiply_that_drops(work))
        assert failed(traces.spans()) == {
            "aten::mul": "ValueError",
            "aten::matmul": UNKNOWN,
            "aten::mm": UNKNOWN,
        }


class TestRangesOfTorch:
    """PyTorch's own ``record_function`` doesn't say by what it was left."""

    def test_one_that_an_exception_leaves(self, traces: Traces) -> None:
        def work() -> None:
            with torch_range("outer"), contextlib.suppress(KeyError), torch_range("inner"):
                raise KeyError("k")

        traces.serve(work)
        spans = traces.spans()
        assert failed(spans) == {"inner": "KeyError"}
        (inner,) = [span for span in spans if span.name == "inner"]
        (event,) = inner.events
        assert "in work" in event.attributes["exception.stacktrace"]

    def test_by_an_operators_exception(self, traces: Traces) -> None:
        def work() -> None:
            with torch_range("range"):
                multiply()

        traces.serve(lambda: fails(work))
        assert failed(traces.spans()) == {
            "range": "RuntimeError",
            "aten::matmul": UNKNOWN,
            "aten::mm": UNKNOWN,
        }

    def test_one_that_begins_while_an_exception_is_handled(self, traces: Traces) -> None:
        def work() -> None:
            try:
                raise KeyError("earlier")
            except KeyError:
                with torch_range("handler"):
                    pass
                with contextlib.suppress(ValueError), torch_range("handler that fails"):
                    raise ValueError("later") from None

        traces.serve(work)
        spans = traces.spans()
        assert failed(spans) == {"handler that fails": "ValueError"}
        assert "handler" in {span.name for span in spans}

    def test_control_flow_is_no_failure(self, traces: Traces) -> None:
        def items() -> Iterator[int]:
            with torch_range("generator"):
                yield 1

        def work() -> None:
            next(items())
            with contextlib.suppress(StopIteration), torch_range("iterator"):
                next(iter(()))
            with contextlib.suppress(SystemExit), torch_range("exit"):
                raise SystemExit(0)

        traces.serve(work)
        spans = traces.spans()
        assert failed(spans) == {}
        assert {"generator", "iterator", "exit"} <= {span.name for span in spans}

    def test_in_a_context_manager_of_the_programs(self, traces: Traces) -> None:
        @contextlib.contextmanager
        def region() -> Iterator[None]:
            with torch_range("region"):
                yield

        def work() -> None:
            with region():
                raise KeyError("k")

        traces.serve(lambda: fails(work, KeyError))
        assert failed(traces.spans()) == {"region": "KeyError"}


def test_data_that_ends_has_not_failed(traces: Traces) -> None:
    loader = torch.utils.data.DataLoader(torch.arange(4), batch_size=2)
    traces.serve(lambda: [*loader])
    spans = traces.spans()
    assert sum(span.name.startswith("enumerate(DataLoader)") for span in spans) == 3
    assert failed(spans) == {}


def test_once_nothing_is_recorded_operators_fail_as_ever(traces: Traces) -> None:
    OtelRecordFunctionInstrumentor().uninstrument()
    fails(multiply)
    assert traces.spans() == []
