"""Callbacks in Python on PyTorch's operators: what they see, on which they run, and that trouble
with them stays theirs.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import Counter
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.profiler import ProfilerActivity, profile  # noqa: E402

from helpers.counting_callback import Counting, is_set_to  # noqa: E402
from helpers.kineto import all_threads_profile  # noqa: E402
from helpers.torch_programs import Training, run_together, scripted_programs  # noqa: E402
from otel_recfn import observing  # noqa: E402
from otel_recfn.errors import InputsError, RangeOver, RecfnError  # noqa: E402
from otel_recfn.model.events import RecordScope  # noqa: E402
from otel_recfn.observing import RecordFunctionCallback  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("no_callbacks_left")]


class TestWhatACallbackSees:
    def test_the_calls_that_torch_profiler_sees(self) -> None:
        training = Training()
        counting = Counting()
        training.step()
        network, fork_and_wait = scripted_programs()
        network(torch.ones(2, 3)), fork_and_wait(torch.ones(3))
        with all_threads_profile() as profiler:
            handle = observing.add_global_callback(counting.callback())
            training.step()
            network(torch.ones(2, 3)), fork_and_wait(torch.ones(3))
            counting.settle()
            observing.remove_callback(handle)
        theirs = Counter(
            (event.name(), RecordScope(event.scope()))
            for event in profiler.profiler.kineto_results.events()
        )
        assert counting.begun == theirs
        assert counting.ended == counting.begun
        assert {scope for _, scope in theirs} >= {
            RecordScope.FUNCTION,
            RecordScope.BACKWARD_FUNCTION,
            RecordScope.TORCHSCRIPT_FUNCTION,
            RecordScope.USER_SCOPE,
        }

    def test_results_are_the_same_though_every_tensor_is_held_and_computed_with(self) -> None:
        def run() -> list[Any]:
            torch.manual_seed(0)
            training = Training()
            training.step()
            return [parameter.detach() for parameter in training.model.parameters()]

        plain = run()
        kept: list[Any] = []

        def start(function: Any) -> None:
            values = [value for value in function.inputs() if isinstance(value, torch.Tensor)]
            kept.extend((value, value.sum()) for value in values if value.is_floating_point())

        callback = RecordFunctionCallback(
            start, lambda function, _: kept.append(function.outputs())
        )
        observing.add_global_callback(callback.needs_inputs(True).needs_outputs(True))
        observed = run()
        observing.clear_callbacks()
        assert len(kept) > 100
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(observed, plain, strict=True))

    def test_inputs_and_outputs_are_the_real_ones(self) -> None:
        seen: dict[str, tuple[list[Any], list[Any]]] = {}

        def end(function: Any, inputs: list[Any]) -> None:
            seen[function.name()] = inputs, function.outputs()

        callback = (
            RecordFunctionCallback(lambda function: function.inputs(), end)
            .needs_inputs(True)
            .needs_outputs(True)
        )
        first = torch.ones(2, dtype=torch.float64)
        second = torch.zeros(2, dtype=torch.float64)
        generator = torch.Generator()
        observing.add_global_callback(callback)
        together = torch.cat([first, second])
        added = torch.add(first, second, alpha=0.5)
        clamped = torch.clamp(first, max=3)
        torch.normal(0.0, 1.0, (2,), generator=generator)
        torch.empty(3, dtype=torch.int16)
        observing.clear_callbacks()
        assert seen["aten::cat"][0][0][0] is first
        assert seen["aten::cat"][0][0][1] is second
        assert torch.equal(seen["aten::cat"][1][0], together)
        assert seen["aten::cat"][0][0][0].dtype == torch.float64
        inputs, outputs = seen["aten::add"]
        assert inputs[0] is first
        assert inputs[1] is second
        assert inputs[2] == 0.5
        assert outputs[0].data_ptr() == added.data_ptr()
        assert seen["aten::clamp"][0] == [first, None, 3]
        assert torch.equal(seen["aten::clamp"][1][0], clamped)
        assert isinstance(seen["aten::normal_"][0][3], torch.Generator)
        assert seen["aten::empty"][0][0] == [3]

    def test_what_another_thread_ends_is_asynchronous_in_its_end_callback(self) -> None:
        seen: dict[str, bool] = {}
        enter, leave = (
            torch.ops.profiler._record_function_enter_new,
            torch.ops.profiler._record_function_exit._RecordFunction,
        )

        def end(function: Any, _: object) -> None:
            seen[function.name()] = function.is_async()

        observing.add_global_callback(
            RecordFunctionCallback(None, end).scopes({RecordScope.USER_SCOPE})
        )
        leave(enter("here", None))
        elsewhere = enter("elsewhere", None)
        run_together(lambda: leave(elsewhere))
        assert seen == {"here": False, "elsewhere": True}

    def test_names_numbers_and_schema(self, one: Any) -> None:
        seen: list[dict[str, Any]] = []
        accessors = [
            "name", "scope", "seq_nr", "thread_id", "forward_thread_id", "handle", "debug_handle",
            "num_inputs", "num_outputs", "operator_name", "operator_schema", "needs_inputs",
            "needs_outputs", "is_active", "is_async", "is_nccl_meta",
            "is_static_runtime_out_variant", "kwinputs", "inputs",
        ]  # fmt: skip

        def start(function: Any) -> None:
            seen.append({accessor: getattr(function, accessor)() for accessor in accessors})

        observing.add_global_callback(RecordFunctionCallback(start).needs_ids(True))
        x = one.requires_grad_()
        total = (x * x).sum()
        total.backward()
        with torch.profiler.record_function("user"):
            pass
        observing.clear_callbacks()
        by_name = {each["name"]: each for each in reversed(seen)}
        forward = by_name["aten::mul"]
        backward = by_name["MulBackward0"]
        user = by_name["user"]
        assert forward["operator_name"] == ("aten::mul", "Tensor")
        assert [argument.name for argument in forward["operator_schema"].arguments] == [
            "self",
            "other",
        ]
        assert (
            forward["num_inputs"],
            forward["num_outputs"],
            forward["inputs"],
            forward["kwinputs"],
        ) == (2, 1, [], {})
        assert forward["seq_nr"] == backward["seq_nr"] >= 0
        assert backward["forward_thread_id"] == forward["thread_id"] > 0
        assert backward["scope"] is RecordScope.BACKWARD_FUNCTION
        assert (user["scope"], user["operator_name"], user["operator_schema"]) == (
            RecordScope.USER_SCOPE,
            None,
            None,
        )
        assert len({each["handle"] for each in seen}) == len(seen)
        for name, value in {
            "needs_inputs": False,
            "is_active": True,
            "is_async": False,
            "debug_handle": -1,
        }.items():
            assert forward[name] is value or forward[name] == value
        assert not any(
            forward[name]
            for name in ("is_nccl_meta", "is_static_runtime_out_variant", "needs_outputs")
        )

    def test_read_too_late_is_a_clear_error(self, one: Any) -> None:
        errors: list[Exception] = []
        kept: list[Any] = []

        def end(function: Any, _context: None) -> None:
            kept.append(function)
            for read in (function.inputs, function.kwinputs):
                with pytest.raises(InputsError, match="outside the start callback; keep") as raised:
                    read()
                errors.append(raised.value)

        observing.add_global_callback(RecordFunctionCallback(kept.append, end).needs_inputs(True))
        is_set_to(one)
        observing.clear_callbacks()
        assert len(errors) == 2
        assert kept[0] is kept[1]
        for accessor in ("name", "outputs", "handle", "operator_schema"):
            with pytest.raises(RangeOver, match="after the callback that got it returned; keep"):
                getattr(kept[0], accessor)()
        with pytest.raises(RecfnError):
            kept[0].inputs()


CALLS = 20_000


class TestWhichRunsItSees:
    @pytest.mark.parametrize(
        ("probability", "least", "most"), [(0.0, 0, 0), (0.01, 120, 290), (1.0, CALLS, CALLS)]
    )
    def test_sampling(self, one: Any, probability: float, least: int, most: int) -> None:
        counting = Counting()
        observing.add_global_callback(counting.callback().sampling_prob(probability))
        observing.set_record_function_seed_for_testing(7)
        is_set_to(one, CALLS)
        assert least <= sum(counting.begun.values()) <= most
        assert counting.ended == counting.begun

    def test_should_run_goes_before_sampling(self, one: Any) -> None:
        asked: list[RecordScope] = []
        counting = Counting()
        answers = iter([True, False, True])

        def should_run(scope: RecordScope) -> bool:
            asked.append(scope)
            return next(answers)

        observing.add_global_callback(counting.callback().sampling_prob(0.0).should_run(should_run))
        is_set_to(one, 3)
        observing.clear_callbacks()
        assert asked == [RecordScope.FUNCTION] * 3
        assert sum(counting.begun.values()) == sum(counting.ended.values()) == 2

    def test_scopes(self, one: Any) -> None:
        counting = Counting()
        observing.add_global_callback(counting.callback().scopes({RecordScope.USER_SCOPE}))
        with torch.profiler.record_function("user"):
            is_set_to(one)
        assert set(counting.begun) == {("user", RecordScope.USER_SCOPE)}

    def test_disabled_reenabled_removed(self, one: Any) -> None:
        counting = Counting()
        handle = observing.add_global_callback(counting.callback())
        for switch, seen in [
            (lambda: None, 1),
            (lambda: observing.disable_callback(handle), 1),
            (lambda: observing.reenable_callback(handle), 2),
            (lambda: observing.remove_callback(handle), 2),
        ]:
            switch()
            is_set_to(one)
            assert sum(counting.begun.values()) == seen

    def test_thread_local_ones_run_in_their_thread_and_what_it_launches(self) -> None:
        _, fork_and_wait = scripted_programs()
        fork_and_wait(torch.ones(3))
        here = Counting()
        everywhere = Counting()
        handle = observing.add_thread_local_callback(here.callback())
        observing.add_global_callback(everywhere.callback())
        run_together(lambda: is_set_to(torch.ones(2)))
        assert not here.begun
        fork_and_wait(torch.ones(3))
        here.settle()
        assert here.names()["aten::relu"] == 2
        assert len(here.threads) > 1
        assert everywhere.names()["aten::is_set_to"] == 1
        kept = len(weakref.finalize._registry)  # type: ignore[attr-defined]
        for switch in (observing.reenable_callback, observing.disable_callback) * 50:
            switch(handle)
        assert len(weakref.finalize._registry) <= kept  # type: ignore[attr-defined]
        before = here.calls()
        torch.ones(2)
        observing.reenable_callback(handle)
        is_set_to(torch.ones(2))
        assert here.calls() > before
        observing.clear_thread_local_callbacks()
        seen = here.calls()
        torch.ones(2)
        assert here.calls() == seen

    def test_removed_in_one_thread_it_goes_on_in_others(self, one: Any) -> None:
        counting = Counting()
        foreign = Counting()
        handle = observing.add_thread_local_callback(counting.callback())
        run_together(observing.propagate(lambda: observing.remove_callback(handle)))
        is_set_to(one)
        for _ in range(70):  # each place is given anew
            run_together(lambda: observing.add_thread_local_callback(foreign.callback()))
        is_set_to(one)
        assert counting.names()["aten::is_set_to"] == 2
        assert not foreign.calls()

    def test_a_thread_that_disabled_record_function_is_left_alone_by_the_profiler_too(
        self, one: Any
    ) -> None:
        counting = Counting()
        observing.add_global_callback(counting.callback())
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            with observing.DisableRecordFunctionGuard():
                is_set_to(one)
            assert not counting.names()["aten::is_set_to"]
            is_set_to(one)
        assert counting.names()["aten::is_set_to"] == 1
        assert [event.name for event in profiler.events()].count("aten::is_set_to") == 1

    def test_more_than_there_is_room_for(self, one: Any, caplog: pytest.LogCaptureFixture) -> None:
        counting = Counting()
        handles = [observing.add_global_callback(counting.callback()) for _ in range(70)]
        is_set_to(one)
        assert counting.calls() == 64
        assert caplog.text.count("more than 64 callbacks") == 1
        observing.remove_callback(handles[0])
        observing.add_global_callback(counting.callback())
        counting.begun.clear()
        is_set_to(one)
        assert counting.calls() == 64


class TestWhatMustNotHappen:
    def test_no_recursion(self, one: Any) -> None:
        counting = Counting()

        def start(_function: Any) -> None:
            counting.begun["started", RecordScope.FUNCTION] += 1
            torch.ones(2) + 1
            with observing.RecordFunction(RecordScope.USER_SCOPE) as range_:
                range_.before("inside")

        observing.add_global_callback(RecordFunctionCallback(start))
        is_set_to(one)
        assert counting.calls() == 1
        with observing.RecordFunction(RecordScope.USER_SCOPE) as range_:
            range_.before("python range")
        assert counting.calls() == 2

    @pytest.mark.parametrize(
        "kind", [ValueError, SystemExit, KeyboardInterrupt, pytest.fail.Exception]
    )
    def test_one_that_raises_is_removed_and_logged_once(
        self, one: Any, caplog: pytest.LogCaptureFixture, kind: type[BaseException]
    ) -> None:
        good = Counting()
        calls = []

        def bad(function: Any) -> None:
            calls.append(function.name())
            raise kind("bad observer")

        observing.add_global_callback(RecordFunctionCallback(bad))
        observing.add_global_callback(RecordFunctionCallback(lambda _: None, lambda *_: bad(_[0])))
        observing.add_thread_local_callback(RecordFunctionCallback(bad))
        observing.add_global_callback(good.callback())
        with caplog.at_level(logging.WARNING, "otel_recfn"):
            is_set_to(one, 3)
        assert calls == ["aten::is_set_to"] * 3
        assert good.calls() == sum(good.ended.values()) == 3
        assert caplog.text.count("raised and was removed (on the range 'aten::is_set_to')") == 3

    def test_added_and_removed_while_eight_threads_run(self) -> None:
        stop = threading.Event()
        counts = [Counting() for _ in range(20)]

        def work() -> None:
            tensor = torch.ones(2)
            while not stop.is_set():
                is_set_to(tensor, 20)

        def change() -> None:
            try:
                for counting in counts:
                    handle = observing.add_global_callback(counting.callback())
                    is_set_to(torch.ones(2), 5)
                    observing.remove_callback(handle)
            finally:
                stop.set()

        run_together(change, *[work] * 8)
        assert all(counting.calls() >= 5 for counting in counts)
        assert all(counting.ended == counting.begun for counting in counts)
