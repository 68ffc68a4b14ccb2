"""The recipes of docs/batching.md, each as its server calls it, and ``batch`` around operators."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.context import Context, get_current
from opentelemetry.propagate import inject
from opentelemetry.sdk.trace import ReadableSpan
from test_readme import blocks

from helpers.exported_traces import Traces
from helpers.timeouts import PATIENCE_S
from helpers.trace_files import read_trace
from otel_recfn import batch, profile

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.one_python]
PAGE = Path(__file__).parents[2] / "docs" / "batching.md"
FIRST, ASYNCIO, THREAD, FUTURES, RAY, TRITON = blocks(PAGE.read_text(encoding="utf-8"))
REQUESTS = 3


class Classifier(torch.nn.Linear):  # type: ignore[misc, name-defined]
    """Numbered apart from the layers of other tests: threads of the recipes may keep it."""


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """Else a child that a later test forks would collect what is left of servers here."""
    yield
    gc.collect()


class Served:
    """A server with a recipe, and the requests that came."""

    def __init__(self, **settings: Any) -> None:
        self.traces = Traces(budgets={"roots_per_second": None}, **settings)
        self.model = Classifier(4, 2)
        self.given: list[Any] = []
        """The span of each request."""

    def run(self, recipe: str) -> dict[str, Any]:
        """What the recipe defines."""
        defined: dict[str, Any] = {"torch": torch, "model": self.model}
        exec(compile(recipe, "docs/batching.md", "exec"), defined)
        return defined

    def request(self) -> Any:
        """A request's span, as a context manager in which it is current."""
        span = self.traces.tracer.start_span("request")
        self.given.append(span)
        return trace.use_span(span, end_on_exit=True)

    def check(self, name: str = "batch") -> list[ReadableSpan]:
        """The forward's spans, each below nothing, with a link to each of its requests, which
        have a span with a link back, and with operations below it.
        """
        spans = self.traces.spans()
        requests = {
            span.parent.span_id: span
            for span in spans
            if span.name == name and "recfn.batch.position" in (span.attributes or {})
        }
        forwards = [span for span in spans if span.name == name and span not in requests.values()]
        assert sorted(requests) == sorted(one.get_span_context().span_id for one in self.given)
        assert sum(len(forward.links) for forward in forwards) == len(requests)
        parents = {span.parent.span_id for span in spans if span.parent is not None}
        for forward in forwards:
            assert forward.parent is None
            assert forward.context.span_id in parents
            for link in forward.links:
                request = requests[link.context.span_id]
                assert [each.context.span_id for each in request.links] == [forward.context.span_id]
                assert request.attributes["recfn.unit.top"]
        counters = self.traces.instrumentor.counters()
        assert counters["recorded"] + counters["added"] == sum(
            counters[outcome] for outcome in ("exported", "folded", "unsampled")
        )
        return forwards


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.traces.instrumentor.uninstrument()


def test_the_first_example(served: Served) -> None:
    """Its model takes other inputs than those of the tests below."""
    served.model = torch.nn.Linear(16, 2)
    with served.request():
        served.run(FIRST)
    assert len([one for one in served.traces.spans() if one.name == "batch"]) == 2


def test_a_queue_of_asyncio(served: Served) -> None:
    defined = served.run(ASYNCIO)

    async def classify(queue: Any) -> Any:
        with served.request():
            return await defined["classify"](queue, torch.ones(1, 4))

    async def serve() -> list[Any]:
        queue: Any = asyncio.Queue()
        computing = asyncio.create_task(defined["compute"](queue))
        outputs = [await asyncio.gather(*[classify(queue) for _ in range(REQUESTS)])]
        outputs += await asyncio.gather(classify(queue))
        computing.cancel()
        return outputs

    first, second = asyncio.run(serve())
    assert torch.equal(first[0], second)
    assert sorted(len(forward.links) for forward in served.check()) == [1, REQUESTS]


def test_a_request_that_is_cancelled_in_the_queue_isnt_computed(served: Served) -> None:
    defined = served.run(ASYNCIO)

    async def serve() -> None:
        queue: Any = asyncio.Queue()
        with trace.use_span(trace.INVALID_SPAN):
            cancelled = asyncio.create_task(defined["classify"](queue, torch.ones(1, 4)))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        computing = asyncio.create_task(defined["compute"](queue))
        with served.request():
            await defined["classify"](queue, torch.ones(1, 4))
        computing.cancel()

    asyncio.run(serve())
    [forward] = served.check()
    assert forward.attributes["recfn.batch.size"] == 1


def test_a_thread(served: Served) -> None:
    defined = served.run(THREAD)
    waiting = defined["queue"].Queue()
    outputs: list[Any] = []

    def classify() -> None:
        with served.request():
            outputs.append(defined["classify"](waiting, torch.ones(1, 4)))

    requests = [threading.Thread(target=classify) for _ in range(REQUESTS)]
    for request in requests:
        request.start()
    threading.Thread(target=defined["compute"], args=(waiting,), daemon=True).start()
    for request in requests:
        request.join(PATIENCE_S)
    assert [tuple(output.shape) for output in outputs] == [(2,)] * REQUESTS
    served.check()


def test_a_thread_whose_model_fails(served: Served) -> None:
    defined = served.run(THREAD)
    waiting = defined["queue"].Queue()
    failed = Future[Any]()
    with served.request():
        waiting.put((torch.ones(1, 5), get_current(), failed))
    threading.Thread(target=defined["compute"], args=(waiting,), daemon=True).start()
    error = failed.exception(PATIENCE_S)
    assert isinstance(error, RuntimeError)
    spans = [one for one in served.traces.spans() if one.name == "batch"]
    assert [one.status.description for one in spans] == [f"RuntimeError: {error}"] * 2


def test_concurrent_futures(served: Served) -> None:
    defined = served.run(FUTURES)
    for _ in range(REQUESTS):
        with served.request():
            defined["enqueue"](torch.ones(1, 4))
    with served.traces.tracer.start_as_current_span("the last request"):
        outputs = defined["flush"]().result(PATIENCE_S)
    assert outputs.shape == (REQUESTS, 2)
    [forward] = served.check()
    assert len(forward.links) == REQUESTS


def ray_batch(max_batch_size: int) -> Callable[[Any], Any]:
    """Ray Serve's ``@serve.batch``, as user code meets it: a list of each argument, in a task that
    the first call starts, and so in the context of that one.
    """

    def decorate(method: Any) -> Any:
        waiting: Any = asyncio.Queue()
        tasks: list[Any] = []

        async def run_batches(owner: Any) -> None:
            while True:
                calls = [await waiting.get()]
                await asyncio.sleep(0)
                while not waiting.empty() and len(calls) < max_batch_size:
                    calls.append(waiting.get_nowait())
                arguments = zip(*[call for call, _ in calls], strict=True)
                outputs = await method(owner, *map(list, arguments))
                for output, (_, future) in zip(outputs, calls, strict=True):
                    future.set_result(output)

        async def call(owner: Any, *arguments: Any) -> Any:
            future = asyncio.get_running_loop().create_future()
            waiting.put_nowait((arguments, future))
            if not tasks:
                tasks.append(asyncio.create_task(run_batches(owner)))
            return await future

        return call

    return decorate


def test_ray_serve(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    ray: Any = ModuleType("ray")
    ray.serve = SimpleNamespace(deployment=lambda deployed: deployed, batch=ray_batch)
    monkeypatch.setitem(sys.modules, "ray", ray)
    deployed = served.run(RAY)["Classifier"]()

    async def request() -> Any:
        with served.request():
            return await deployed(torch.ones(4))

    async def serve() -> list[Any]:
        first = await asyncio.gather(*[request() for _ in range(REQUESTS)])
        return [*first, await request()]

    outputs = asyncio.run(serve())
    assert [tuple(output.shape) for output in outputs] == [(2,)] * (REQUESTS + 1)
    assert sorted(len(forward.links) for forward in served.check()) == [1, REQUESTS]


class Tensor:
    """Triton's, of its Python backend."""

    def __init__(self, name: str, array: Any) -> None:
        self.name, self._array = name, array

    def as_numpy(self) -> Any:
        return self._array


def triton_request(served: Served | None, rows: int) -> Any:
    """A request in a span, or one that Triton doesn't trace."""
    headers: dict[str, str] = {}
    if served is not None:
        with served.request():
            inject(headers)
    said = json.dumps(headers) if headers else None
    return SimpleNamespace(
        tensors={"INPUT": Tensor("INPUT", torch.ones(rows, 4).numpy())},
        trace=lambda: SimpleNamespace(get_context=lambda: said),
    )


def test_triton(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    backend: Any = ModuleType("triton_python_backend_utils")
    backend.get_input_tensor_by_name = lambda request, name: request.tensors[name]
    backend.Tensor = Tensor
    backend.InferenceResponse = lambda tensors: SimpleNamespace(output_tensors=lambda: tensors)
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", backend)
    loaded = served.run(TRITON)["TritonPythonModel"]()
    loaded.initialize({})
    requests = [triton_request(served, 1), triton_request(None, 2), triton_request(served, 3)]
    with torch.no_grad():
        responses = loaded.execute(requests)
    loaded.finalize()
    shapes = [response.output_tensors()[0].as_numpy().shape for response in responses]
    assert shapes == [(1, 2), (2, 2), (3, 2)]
    [forward] = served.check()
    assert forward.attributes["recfn.batch.size"] == 3


@pytest.mark.parametrize(("detail", "sums"), [("low", True), ("normal", True), ("all", False)])
def test_with_every_detail_requests_have_their_spans(detail: str, sums: bool) -> None:
    traces = Traces(budgets={}, detail=detail)
    with traces.tracer.start_as_current_span("request"):
        context = get_current()
    with batch([context]):
        torch.nn.Linear(4, 2)(torch.ones(1, 4))
    forward, request = [span for span in traces.spans() if span.name == "batch"]
    traces.instrumentor.uninstrument()
    assert [link.context.span_id for link in request.links] == [forward.context.span_id]
    assert ("recfn.unit.top" in (request.attributes or {})) is sums


def test_profiles_and_local_files_have_a_range_of_its_name(tmp_path: Path) -> None:
    with profile() as prof, batch([Context()]), batch([], "decode"):
        torch.ones(2) + 1
    assert "batch" in str(prof.tree())
    prof.export_chrome_trace(tmp_path / "trace.json")
    names = [event["name"] for event in read_trace(tmp_path / "trace.json")["traceEvents"]]
    assert {"batch", "decode", "aten::add"} <= set(names)


def served_batch(x: Any) -> Any:
    with batch(contexts=[None], name="decode"):
        return x + 1


def test_compiled_code_may_have_a_batch() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(served_batch, backend="eager", fullgraph=True)
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
