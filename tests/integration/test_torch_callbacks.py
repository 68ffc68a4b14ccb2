"""What callbacks in Python see of PyTorch's own operators."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from counting import Counting, is_set_to  # noqa: E402
from kineto import profile_of_all_threads  # noqa: E402
from torch_programs import Training, scripted_programs  # noqa: E402

from otel_recfn import observing  # noqa: E402
from otel_recfn.model.errors import InputsError, RangeOver, RecfnError  # noqa: E402
from otel_recfn.model.events import RecordScope  # noqa: E402
from otel_recfn.observing import RecordFunctionCallback  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("needs_observer", "no_callbacks_left")]


class TestWhatACallbackSees:
    def test_the_calls_that_torch_profiler_sees(self) -> None:
        training, counting = Training(), Counting()
        training.step()
        network, fork_and_wait = scripted_programs()
        network(torch.ones(2, 3)), fork_and_wait(torch.ones(3))
        with profile_of_all_threads() as profiler:
            handle = observing.add_global_callback(counting.callback())
            training.step()
            network(torch.ones(2, 3)), fork_and_wait(torch.ones(3))
            counting.settle()
            observing.remove_callback(handle)
        theirs = Counter((event.name(), RecordScope(event.scope())) for event in profiler.profiler.kineto_results.events())
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

        callback = RecordFunctionCallback(start, lambda function, _: kept.append(function.outputs()))
        observing.add_global_callback(callback.needs_inputs(True).needs_outputs(True))
        observed = run()
        observing.clear_callbacks()
        assert len(kept) > 100
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(observed, plain, strict=True))

    def test_inputs_and_outputs_are_the_real_ones(self) -> None:
        seen: dict[str, tuple[list[Any], list[Any]]] = {}

        def end(function: Any, inputs: list[Any]) -> None:
            seen[function.name()] = inputs, function.outputs()

        callback = RecordFunctionCallback(lambda function: function.inputs(), end).needs_inputs(True).needs_outputs(True)
        first, second = torch.ones(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
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

    def test_names_numbers_and_schema(self, one: Any) -> None:
        seen: list[dict[str, Any]] = []
        accessors = [
            "name", "scope", "seq_nr", "thread_id", "forward_thread_id", "handle", "debug_handle", "num_inputs", "num_outputs",
            "operator_name", "operator_schema", "needs_inputs", "needs_outputs", "is_active", "is_async", "is_nccl_meta",
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
        forward, backward, user = by_name["aten::mul"], by_name["MulBackward0"], by_name["user"]
        assert forward["operator_name"] == ("aten::mul", "Tensor")
        assert [argument.name for argument in forward["operator_schema"].arguments] == ["self", "other"]
        assert (forward["num_inputs"], forward["num_outputs"], forward["inputs"], forward["kwinputs"]) == (2, 1, [], {})
        assert forward["seq_nr"] == backward["seq_nr"] >= 0
        assert backward["forward_thread_id"] == forward["thread_id"] > 0
        assert backward["scope"] is RecordScope.BACKWARD_FUNCTION
        assert (user["scope"], user["operator_name"], user["operator_schema"]) == (RecordScope.USER_SCOPE, None, None)
        assert len({each["handle"] for each in seen}) == len(seen)
        for name, value in {"needs_inputs": False, "is_active": True, "is_async": False, "debug_handle": -1}.items():
            assert forward[name] is value or forward[name] == value
        assert not any(forward[name] for name in ("is_nccl_meta", "is_static_runtime_out_variant", "needs_outputs"))

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
