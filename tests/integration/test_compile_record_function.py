"""RecordFunction in compiled code, and other tracers than torch.compile."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from compile_helpers import USER_SCOPE, VERSION, X, every_form, is_whole

from otel_recfn import RecordFunction, legacy, observing, record_function

torch = pytest.importorskip("torch")
from compiled_forms import FORMS, compiled  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("forget_what_was_compiled")]

contexts = pytest.mark.skipif(VERSION < (2, 6), reason="torch.compile knows no context managers of others' classes")


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
    handle, record = observing.record_function_enter("old"), observing.record_function_enter_new("new", "its arguments")
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
        assert (range_.scope(), range_.is_active(), range_.handle(), range_.num_inputs()) == (USER_SCOPE, False, 0, 0)
        range_.end()

    def test_what_belongs_to_the_thread_is_asked_each_time(self) -> None:
        run = torch.compile(lambda x: x + 1 if observing.is_record_function_enabled() else x - 1, backend="eager")
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
