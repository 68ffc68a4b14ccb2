"""What ``torch.compile`` compiles is recorded where it was waited for, with what is known of it,
and goes on as without us.
"""

from __future__ import annotations

import json
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from typing import Any

import pytest

from otel_recfn import profile, record_function
from otel_recfn.model.batch import Event
from otel_recfn.model.events import EventFlag, EventSource

torch = pytest.importorskip("torch")
from helpers.compiled_forms import VERSION, X  # noqa: E402

convert_frame, dynamo_utils = torch._dynamo.convert_frame, torch._dynamo.utils

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("compiles_anew")]
has_phases = pytest.mark.skipif(VERSION < (2, 13), reason="this PyTorch announces phases itself")


@pytest.fixture
def compiles_anew() -> Iterator[None]:
    torch._dynamo.reset()
    dynamo_utils.counters.clear()
    yield
    torch._dynamo.reset()


def eager(module: Any, _examples: Any) -> Any:
    return module.forward


def add(x: Any) -> Any:
    return x + 1


def subtract(x: Any) -> Any:
    return x - 1


def multiply(x: Any) -> Any:
    return x * 2


def breaks(x: Any) -> Any:
    x = x + 1
    print("a break")
    return x * 2


def in_a_loop(x: Any) -> Any:
    for _ in range(2):
        with torch.no_grad():
            print("a break")
            x = x + 1
    return x


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)

    def forward(this, x: Any) -> Any:
        return this.linear(x).relu()


def compilations(events: list[Event]) -> list[Event]:
    return [event for event in events if event.name.startswith("torch.compile: ")]


def end_attributes(event: Event) -> dict[str, Any]:
    """What its end says, by the names of its attributes without what all have in common."""
    said = json.loads(event.attributes or "{}")
    return {name.removeprefix("recfn.compile."): value for name, value in said.items()}


def path(event: Event, events: list[Event]) -> list[str]:
    """The names of what it lies in, outermost first, and its own."""
    by_id = {each.event_id: each for each in events}
    names = [event.name]
    while (around := by_id.get(event.parent)) is not None:
        names.insert(0, around.name)
        event = around
    return names


def test_it_lies_below_the_call_that_waits(instrument: Callable[..., Any]) -> None:
    seen = instrument()
    net = torch.compile(Net(), backend=eager)
    net(X)
    net(X)
    (one,) = compilations(seen.events())
    assert path(one, seen.events())[-2:] == ["nn.Module: Net_0", "torch.compile: Net"]
    assert end_attributes(one)["id"] == "0/0"
    function = "Net.forward" if sys.version_info >= (3, 11) else "forward"
    assert one.code == f"{__file__}({Net.forward.__code__.co_firstlineno}): {__name__}.{function}"
    assert not one.error


def test_modules_of_pytorchs_own_have_their_names(instrument: Callable[..., Any]) -> None:
    seen = instrument()
    torch.compile(torch.nn.Sequential(torch.nn.ReLU()), backend=eager)(X)
    (one,) = compilations(seen.events())
    assert one.name == "torch.compile: Sequential"
    assert one.code.endswith(": torch.nn.modules.container.Sequential.forward")


def test_what_is_compiled_has_the_path_that_it_has_without(instrument: Callable[..., Any]) -> None:
    def paths(make: Callable[[Any], Any]) -> dict[str, str]:
        seen = instrument()
        make(torch.nn.Sequential(Net(), make(Net())))(X)
        return {event.name: event.module for event in seen.finish() if event.module}

    plain = paths(lambda module: module)
    compiled = paths(lambda module: torch.compile(module, backend=eager, disable=True))
    assert sorted(plain.values()) == ["0", "0.linear", "1", "1.linear"]
    assert {name: path for name, path in compiled.items() if "Optimized" not in name} == plain


def test_a_second_one_says_why(instrument: Callable[..., Any]) -> None:
    seen = instrument()
    run = torch.compile(add, backend=eager, dynamic=False)
    run(torch.ones(4))
    run(torch.ones(8))
    first, second = compilations(seen.events())
    assert "reason" not in end_attributes(first)
    assert end_attributes(second)["id"] == "0/1"
    assert "size mismatch at index 0. expected 4, actual 8" in end_attributes(second)["reason"]


def test_where_the_graph_broke(instrument: Callable[..., Any]) -> None:
    seen = instrument()
    assert torch.equal(torch.compile(breaks, backend=eager)(X), breaks(X))
    first, rest = compilations(seen.events())
    (why,) = end_attributes(first)["graph_breaks"]
    assert "print" in why
    assert rest.name.startswith("torch.compile: torch_dynamo_resume_in_breaks")
    assert "graph_breaks" not in end_attributes(rest)


def test_what_runs_uncompiled_is_no_error(instrument: Callable[..., Any]) -> None:
    seen = instrument()
    assert torch.equal(torch.compile(in_a_loop, backend=eager)(X), in_a_loop(X))
    (one,) = compilations(seen.events())
    # Which says nothing but that it skips the function.
    assert end_attributes(one).get("fallback") or VERSION < (2, 13)
    assert not one.error


@pytest.mark.parametrize("whole", [True, False])
def test_what_fails_is_an_error_and_raises_as_without_us(
    instrument: Callable[..., Any], whole: bool
) -> None:
    def broken(_module: Any, _examples: Any) -> Any:
        raise ValueError("no backend")

    def raised() -> str:
        torch._dynamo.reset()
        with pytest.raises(torch._dynamo.exc.TorchDynamoException) as caught:
            torch.compile(in_a_loop if whole else add, backend=broken, fullgraph=whole)(X)
        return f"{type(caught.value).__name__}: {str(caught.value).splitlines()[0]}"

    plain = raised()
    seen = instrument()
    assert raised() == plain
    (one,) = compilations(seen.events())
    assert one.flags & EventFlag.ERROR
    assert one.error.startswith(f"torch._dynamo.exc.{plain}")


def test_as_many_as_dynamo_counts(instrument: Callable[..., Any]) -> None:
    def frames() -> Counter[int]:
        return Counter(convert_frame.FRAME_COMPILE_COUNTER)

    before = frames()
    seen = instrument()
    run = torch.compile(add, backend=eager, dynamic=False)
    other = torch.compile(breaks, backend=eager, dynamic=False)
    for size in (2, 3, 3, 4):
        run(torch.ones(size))
        other(torch.ones(size))
    torch.compile(in_a_loop, backend=eager)(X)
    since = frames() - before
    found = compilations(seen.events())
    assert len(found) == since.total() == 3 * 3 + 1
    assert (
        sum("reason" in end_attributes(one) for one in found) == since.total() - len(since) == 3 * 2
    )


@has_phases
def test_phases_lie_in_it_as_torch_profiler_names_them(instrument: Callable[..., Any]) -> None:
    seen = instrument()
    torch.compile(add, backend="aot_eager")(X)
    events = seen.events()
    of = {event.name.removesuffix(" (dynamo_timed)"): path(event, events) for event in events}
    assert of["create_aot_dispatcher_function"] == [
        "torch.compile: add",
        "compile_attempt_0 (dynamo_timed)",
        "OutputGraph.call_user_compiler (dynamo_timed)",
        "create_aot_dispatcher_function (dynamo_timed)",
    ]
    assert of["build_guards"][:-1] == ["torch.compile: add"]


@pytest.mark.parametrize("detail", ["normal", "all"])
def test_of_what_runs_inside_only_sums_become_spans(traces: Any, detail: str) -> None:
    traces.instrumentor.uninstrument()
    traces.instrumentor.instrument(tracer_provider=traces.provider, detail=detail)
    net = torch.compile(Net(), backend="aot_eager")
    with traces.tracer.start_as_current_span("request"):
        net(torch.ones(2, 2, requires_grad=True)).sum().backward()
    traces.instrumentor.uninstrument()
    spans = {span.context.span_id: span for span in traces.spans()}

    def around(span: Any) -> list[Any]:
        found = []
        while span.parent is not None and (span := spans.get(span.parent.span_id)) is not None:
            found.append(span)
        return found

    inside = [
        span
        for span in spans.values()
        if any("torch.compile" in each.name for each in around(span))
    ]
    phases = {"Dynamo", "backend", "AOT autograd"}
    if detail == "all":
        phases.add("Dynamo: guards")  # which may take less than a thousandth of the request
    assert phases <= {span.name for span in inside} or VERSION < (2, 13)
    assert all(span.attributes["recfn.scope"] == "USER_SCOPE" for span in inside)
    assert not [
        span
        for span in inside
        if "dynamo_timed" in str((span.name, span.attributes.get("recfn.folded.top")))
    ]
    counters = traces.instrumentor.counters()
    assert sum(span.attributes.get("recfn.folded.count", 0) for span in inside) > 0
    assert counters["recorded"] + counters["added"] == counters["exported"] + counters["folded"]


@has_phases
def test_phases_without_words_are_none(instrument: Callable[..., Any]) -> None:
    def backend(module: Any, _examples: Any) -> Any:
        with dynamo_utils.compile_time_record_function("a phase of nobody's (dynamo_timed)"):
            return module.forward

    seen = instrument()
    torch.compile(add, backend=backend)(X)
    names = [event.name for event in seen.events()]
    assert "OutputGraph.call_user_compiler (dynamo_timed)" in names
    assert "a phase of nobody's (dynamo_timed)" not in names


@has_phases
def test_spans_of_phases_may_keep_torchs_names(traces: Any) -> None:
    traces.instrumentor.uninstrument()
    traces.instrumentor.instrument(
        tracer_provider=traces.provider, span_names="torch", detail="all"
    )
    with traces.tracer.start_as_current_span("request"):
        torch.compile(add, backend=eager)(X)
    traces.instrumentor.uninstrument()
    phases = {
        span.name: span.attributes["recfn.compile.phase"]
        for span in traces.spans()
        if "dynamo_timed" in span.name
    }
    assert phases["build_guards (dynamo_timed)"] == "build_guards"


def test_operators_know_that_they_run_inside(instrument: Callable[..., Any]) -> None:
    seen = instrument(modules=False)
    run = torch.compile(add, backend=eager)
    run(X)
    run(X)
    events = seen.events()
    for event in [event for event in events if event.name.startswith("aten::")]:
        inside = any("torch.compile: " in name for name in path(event, events))
        assert bool(event.flags & EventFlag.IN_COMPILATION) == inside
    assert {
        bool(event.flags & EventFlag.IN_COMPILATION)
        for event in events
        if event.name == "aten::add"
    } == {True, False}


def test_a_range_of_the_backends_own_stays_one(instrument: Callable[..., Any]) -> None:
    def backend(module: Any, _examples: Any) -> Any:
        with record_function("own"):
            return module.forward

    seen = instrument()
    torch.compile(add, backend=backend)(X)
    (own,) = [event for event in seen.events() if event.name == "own"]
    assert "torch.compile: add" in path(own, seen.events())
    assert not own.flags & EventFlag.IN_COMPILATION


def graphs_and_counters(function: Callable[[Any], Any], backend: str | None) -> tuple[Any, ...]:
    """All that can be seen of a compilation: graphs, warnings, counters, ids and names, results
    and gradients.
    """
    graphs = []

    def keeping(module: Any, examples: Any) -> Any:
        graphs.append(module.print_readable(print_output=False))
        return module.forward

    torch._dynamo.reset()
    dynamo_utils.counters.clear()
    dynamo_utils.clear_compilation_metrics()
    run = torch.compile(function, backend=backend or keeping)
    results = []
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for size in (2, 3, 2):
            x = torch.ones(size, 2, requires_grad=True)
            result = run(x)
            result.sum().backward()
            results.append((result.tolist(), x.grad.tolist()))
    counters = {group: dict(counts) for group, counts in dynamo_utils.counters.items()}
    compiled = [
        (one.compile_id, one.co_name)
        for one in dynamo_utils.get_compilation_metrics()
        if hasattr(one, "co_name")
    ]
    return graphs, sorted(str(one.message) for one in warned), counters, compiled, results


@pytest.mark.parametrize("backend", [None, "eager", "aot_eager"])
@pytest.mark.parametrize("function", [add, breaks], ids=lambda each: each.__name__)
def test_nothing_changes(
    instrument: Callable[..., Any], function: Any, backend: str | None
) -> None:
    plain = graphs_and_counters(function, backend)
    seen = instrument()
    assert graphs_and_counters(function, backend) == plain
    assert compilations(seen.events())


@pytest.mark.parametrize("modules", [True, False])
@pytest.mark.parametrize("calls", ["none", "calls", "stacks"])
def test_what_we_do_is_not_compiled(
    instrument: Callable[..., Any], calls: str, modules: bool
) -> None:
    net = Net()

    def runs_uncompiled(x: Any) -> Any:
        for _ in range(2):
            with torch.no_grad(), suppress(ValueError), record_function("own"):
                net(x)
                raise ValueError
        return net(x)

    def compiled() -> list[Any]:
        return [graphs_and_counters(function, None) for function in (net, runs_uncompiled)]

    plain = compiled()
    with profile(with_stack=True, modules=modules) if calls == "stacks" else nullcontext():
        if calls != "stacks":
            instrument(python_calls=calls == "calls", modules=modules)
        assert compiled() == plain


def test_beside_torch_profiler_both_have_each_phase_once(instrument: Callable[..., Any]) -> None:
    def phases() -> Counter[str]:
        torch._dynamo.reset()
        with torch.profiler.profile() as prof:
            torch.compile(add, backend="aot_eager")(X)
        return Counter(event.name for event in prof.events() if "dynamo_timed" in event.name)

    plain = phases()
    seen = instrument()
    assert phases() == plain
    assert Counter(event.name for event in seen.events() if "dynamo_timed" in event.name) == plain
    assert len(compilations(seen.events())) == 1


def test_in_several_threads(instrument: Callable[..., Any]) -> None:
    def work(function: Callable[[Any], Any]) -> None:
        with record_function(f"in {function.__name__}"):
            torch.compile(function, backend=eager)(X)

    seen = instrument()
    functions = [add, subtract, multiply]
    threads = [threading.Thread(target=work, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events = seen.events()
    found = sorted(path(one, events) for one in compilations(events))
    assert found == sorted(
        [f"in {each.__name__}", f"torch.compile: {each.__name__}"] for each in functions
    )


def test_pytorchs_functions_stand_there_again(instrument: Callable[..., Any]) -> None:
    def stand_there() -> list[Any]:
        return [convert_frame._compile, getattr(dynamo_utils, "compile_time_record_function", None)]

    theirs = stand_there()
    seen = instrument()
    assert stand_there()[0] is not theirs[0]
    seen.finish()
    assert stand_there() == theirs


def test_wrapped_by_somebody_else_ours_passes_on_and_records_once_later(
    instrument: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = convert_frame._compile
    seen = instrument()
    ours = convert_frame._compile
    with monkeypatch.context() as wrapping:
        wrapping.setattr(
            convert_frame, "_compile", lambda *arguments, **options: ours(*arguments, **options)
        )
        seen.finish()
        with record_function("nobody records"):
            assert torch.equal(torch.compile(add, backend=eager)(X), X + 1)
        assert seen.finish() == []
        again = instrument()
        torch.compile(subtract, backend=eager)(X)
        assert [event.name for event in compilations(again.events())] == ["torch.compile: subtract"]
    assert convert_frame._compile is ours
    again.finish()
    assert convert_frame._compile is theirs


def test_scopes_select_it() -> None:
    from otel_recfn import RecordScope

    with profile(scopes={RecordScope.FUNCTION}) as prof:
        torch.compile(add, backend=eager)(X)
    assert not [event for event in prof.events() if event.source == EventSource.COMPILATION]


def test_where_pytorch_announces_phases_operators_know_it_too(
    instrument: Callable[..., Any],
) -> None:
    seen = instrument()
    with (
        torch.profiler.record_function("phase (dynamo_timed)"),
        torch.profiler.record_function("inside"),
    ):
        torch.add(X, 1)
    flags = {event.name: event.flags & EventFlag.IN_COMPILATION for event in seen.events()}
    assert flags["aten::add"]
    assert not flags["inside"] | flags["phase (dynamo_timed)"]
