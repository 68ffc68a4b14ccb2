"""``torch.compile`` of functions with ranges, and other tracers: as with PyTorch's own ranges;
whatever is imported first.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from otel_recfn import legacy, observing, record_function
from otel_recfn.observing import RecordFunction

torch = pytest.importorskip("torch")
from helpers.compiled_forms import (  # noqa: E402
    FORMS,
    USER_SCOPE,
    VERSION,
    Compiled,
    X,
    captures,
    compiled,
    every_form,
    is_whole,
    names,
)

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("forget_what_was_compiled")]


@every_form
@pytest.mark.parametrize("fullgraph", [True, False])
def test_one_graph_as_with_torchs_own_and_the_same_result(make: Any, fullgraph: bool) -> None:
    function = make(record_function)
    ours = compiled(function, X, fullgraph=fullgraph)
    torchs = compiled(make(torch.profiler.record_function), X, fullgraph=fullgraph)
    assert is_whole(ours)
    assert torch.equal(ours.result, function(X))
    # Those before 2.13 break their graphs at some forms of their own.
    assert (ours.graphs, ours.error) == (torchs.graphs, torchs.error) or (
        VERSION < (2, 13) and ours.pieces < torchs.pieces
    )


@captures
@every_form
def test_in_the_graph_where_torchs_own_is(make: Any, capturing: None) -> None:
    ours = compiled(make(record_function), X)
    torchs = compiled(make(torch.profiler.record_function), X)
    assert any("_record_function_enter" in call for call in ours.graphs[0])
    assert ours.graphs == torchs.graphs or (VERSION < (2, 13) and torchs.error is not None)


@captures
@every_form
def test_what_is_in_the_graph_is_recorded_once(
    make: Any, capturing: None, instrument: Callable[..., Any]
) -> None:
    if make is FORMS["name_as_keyword"] and VERSION < (2, 13):
        pytest.skip("PyTorch 2.12 forgets it, also of its own")
    eager = make(record_function)
    function = torch.compile(eager, backend="eager", fullgraph=True)
    seen = instrument(modules=False)
    function(X)
    seen.forget()
    eager(X)
    expected = names(seen.events())
    seen.forget()
    function(X)
    assert names(seen.events()) == expected != []


@captures
def test_operators_lie_in_their_range(capturing: None, instrument: Callable[..., Any]) -> None:
    function = torch.compile(FORMS["nested"](record_function), backend="eager", fullgraph=True)
    function(X)
    seen = instrument()
    function(X)
    events = {event.event_id: event for event in seen.events()}
    (multiplication,) = [event for event in events.values() if event.name == "aten::mul"]
    path = []
    while (above := events.get(multiplication.parent)) is not None:
        path.append(above.name)
        multiplication = above
    assert path[:3] == ["inner", "middle", "outer"]


def test_skipped_ranges_are_not_recorded(instrument: Callable[..., Any]) -> None:
    function = FORMS["with_block"](record_function)
    seen = instrument(modules=False)
    run = torch.compile(function, backend="eager", fullgraph=True)
    assert torch.equal(run(X), function(X))
    assert torch.equal(run(X), function(X))
    assert names(seen.events()) == ["add", "add"]


def test_ranges_of_what_is_not_compiled_are_recorded(instrument: Callable[..., Any]) -> None:
    @torch.compiler.disable
    def eager(x: Any) -> Any:
        with record_function("eager"):
            return x + 1

    def function(x: Any) -> Any:
        with record_function("compiled"):
            x = x * 2
        return eager(x) * 2

    seen = instrument(modules=False)
    found = compiled(function, X, fullgraph=False)
    assert (len(found.graphs), found.error) == (2, None)
    assert names(seen.events()) == ["eager"]
    assert torch.equal(found.result, function(X))


@pytest.mark.skipif(VERSION < (2, 8), reason="torch.compile follows no generators")
def test_a_decorated_generator_is_followed_as_any() -> None:
    def numbers(x: Any) -> Iterator[Any]:
        yield x + 1
        yield x + 2

    def total_of(generator: Any) -> Compiled:
        return compiled(lambda x: sum(generator(x)), X)

    plain = total_of(numbers)
    ours = total_of(record_function("numbers")(numbers))
    assert is_whole(ours)
    assert ours.graphs == plain.graphs


class TestUnderObservation:
    """What is going on in the program doesn't change what is compiled."""

    @pytest.mark.skipif(
        VERSION < (2, 5),
        reason="PyTorch 2.4 calls modules, and their hooks, while it compiles them",
    )
    def test_in_a_module_with_hooks(self, instrument: Callable[..., Any]) -> None:
        instrument()
        assert is_whole(compiled(FORMS["in_a_module"](record_function), X))

    @pytest.mark.usefixtures("no_callbacks_left")
    def test_callbacks_see_nothing_of_skipped_ranges(self) -> None:
        seen: list[str] = []
        callback = observing.RecordFunctionCallback(
            lambda range_: seen.append(range_.name())
        ).scopes({USER_SCOPE})
        function = FORMS["with_block"](record_function)
        run = torch.compile(function, backend="eager", fullgraph=True)
        run(X)
        observing.add_global_callback(callback)
        run(X)
        assert seen == []
        function(X)
        assert seen == ["add"]


contexts = pytest.mark.skipif(
    VERSION < (2, 6), reason="torch.compile knows no context managers of others' classes"
)


def before_and_end(x: Any) -> Any:
    range_ = RecordFunction(USER_SCOPE)
    range_.before("range", (x,))
    x = x + 1
    range_.end()
    return x


def where_active(x: Any) -> Any:
    range_ = RecordFunction(scope=USER_SCOPE)
    if range_.is_active():
        range_.before("range", (x,) if range_.needs_inputs() else ())
    x = x + 1
    if range_.needs_outputs():
        range_.set_outputs([x])
    range_.end()
    return x


def by_operations(x: Any) -> Any:
    handle = observing.record_function_enter("old")
    record = observing.record_function_enter_new("new", "its arguments")
    x = x + 1
    observing.record_function_exit(record)
    observing.record_function_exit(handle)
    return x


def as_context(x: Any) -> Any:
    with RecordFunction(USER_SCOPE) as range_:
        range_.before("range")
        return x + 1


def by_helpers(x: Any) -> Any:
    with observing.record_user_scope("range", (x,)):
        x = x + 1
    with observing.record_function_with_inputs("forward", (x,), 7) as range_:
        x = x + 1
        observing.record_outputs(range_, [x])
    return x


RANGES = [before_and_end, where_active, by_operations]


RANGES += [pytest.param(each, marks=contexts) for each in (as_context, by_helpers)]


class TestRecordFunction:
    """The runtime's ranges."""

    @pytest.mark.parametrize("function", RANGES)
    def test_one_graph_and_the_same_result(self, function: Any) -> None:
        found = compiled(function, X)
        assert is_whole(found)
        assert torch.equal(found.result, function(X))

    def test_one_that_leaves_the_compiled_code_is_a_range_without_effect(self) -> None:
        def function(x: Any) -> Any:
            range_ = RecordFunction(USER_SCOPE)
            range_.before("range")
            return x + 1, range_

        found = compiled(function, X)
        assert is_whole(found)
        _, range_ = found.result
        assert isinstance(range_, RecordFunction)
        assert (range_.scope(), range_.is_active(), range_.handle(), range_.num_inputs()) == (
            USER_SCOPE,
            False,
            0,
            0,
        )
        range_.end()

    def test_what_belongs_to_the_thread_is_asked_each_time(self) -> None:
        run = torch.compile(
            lambda x: x + 1 if observing.is_record_function_enabled() else x - 1, backend="eager"
        )
        for enabled in (True, False, True):
            with observing.RecordFunctionGuard(enabled):
                assert torch.equal(run(X), X + 1 if enabled else X - 1)


def test_marks_are_skipped() -> None:
    def function(x: Any) -> Any:
        legacy.mark("begin")
        x = x + 1
        legacy.mark("end", include_cuda=False)
        return x

    legacy.enable_profiler_legacy(legacy.ProfilerConfig(legacy.ProfilerState.CPU))
    try:
        assert is_whole(compiled(function, X))
    finally:
        lists = legacy.disable_profiler_legacy()
    assert not {"begin", "end"} & {event.name for events in lists for event in events}


class TestOtherTracers:
    """Exports and traces are those of the function without ranges."""

    @every_form
    @pytest.mark.parametrize("strict", [True, False])
    def test_export(self, make: Any, strict: bool) -> None:
        module = as_module(make(record_function))
        exported = torch.export.export(module, (X,), strict=strict)
        assert not [node for node in exported.graph.nodes if "profiler" in str(node.target)]
        assert torch.equal(exported.module()(X), module(X))

    @every_form
    def test_symbolic_trace(self, make: Any) -> None:
        if make is FORMS["names_made_on_the_way"]:
            pytest.skip("a proxy's shape can't be in a name")
        function = make(record_function)
        assert torch.equal(torch.fx.symbolic_trace(function)(X), function(X))

    @every_form
    def test_jit_trace(self, make: Any) -> None:
        function = make(record_function)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is deprecated in later versions
            assert torch.equal(torch.jit.trace(function, (X,))(X), function(X))


def as_module(function: Any) -> Any:
    if isinstance(function, torch.nn.Module):
        return function

    class Module(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return function(x)

    return Module()


Run = Callable[..., Any]
USE = """
import logging, sys
outside = record_function("outside")
@record_function("decorated")
def decorated(x):
    with record_function("inside"), outside:
        return x + 1
graphs = []
def backend(module, examples):
    graphs.append(module)
    return module.forward
def check(fullgraph=True):
    compiled = torch.compile(decorated, backend=backend, fullgraph=fullgraph)
    assert torch.equal(compiled(torch.ones(2)), torch.ones(2) + 1)
"""


ONE_GRAPH = "check()\nassert len(graphs) == 1\n"


@pytest.mark.parametrize(
    ("imports", "run"),
    [
        ("import torch, torch._dynamo; from otel_recfn import record_function", "run_with_dynamo"),
        ("from otel_recfn import record_function; import torch, torch._dynamo", "run_program"),
    ],
)
def test_whatever_is_imported_first(imports: str, run: str, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(run)(f"{imports}\n{USE}{ONE_GRAPH}")


def test_a_name_that_is_resolved_while_it_is_compiled(run_with_dynamo: Run) -> None:
    run_with_dynamo("""
import torch, otel_recfn
def function(x):
    with otel_recfn.record_function("first use"):
        return x + 1
assert "record_function" not in vars(otel_recfn)
compiled = torch.compile(function, backend="eager", fullgraph=True)
assert torch.equal(compiled(torch.ones(2)), torch.ones(2) + 1)
""")


def test_what_torch_imports_late_stays_so(run_with_torch: Run) -> None:
    run_with_torch("""
import sys, torch
before = {name for name in sys.modules if name.startswith("torch.")}
from otel_recfn import record_function
from otel_recfn.observing import RecordFunction
assert {name for name in sys.modules if name.startswith("torch.")} == before
""")


def test_a_part_that_is_missing_costs_what_needs_it(run_with_dynamo: Run) -> None:
    done = run_with_dynamo(f"""
import torch, torch._dynamo.source as source
kept = source.AttrSource
del source.AttrSource
from otel_recfn import record_function
source.AttrSource = kept
{USE}
def function(x):
    with record_function("inside"):
        return x + 1
torch.compile(function, backend=backend, fullgraph=True)(torch.ones(2))
assert len(graphs) == 1
check(fullgraph=False)
""")
    assert done.stderr.count("this PyTorch's torch.compile works otherwise") == 1
    assert "AttrSource" in done.stderr
