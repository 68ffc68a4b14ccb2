"""Callbacks in Python on PyTorch's own operators: what they see, when they run, and that the program never notices."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.profiler import ProfilerActivity, profile  # noqa: E402
from torch_programs import Training, run_together, scripted_programs  # noqa: E402

from otel_recfn import observing  # noqa: E402
from otel_recfn.model.errors import RecfnError  # noqa: E402
from otel_recfn.model.scope import RecordScope  # noqa: E402
from otel_recfn.observing import RecordFunctionCallback  # noqa: E402
from otel_recfn.runtime.record_function import InputsError  # noqa: E402
from otel_recfn.sources.torch_callbacks import RangeOver  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("needs_observer")]

CALLS = 20_000
PATIENCE_S = 20.0


class Counting:
    """Counts begins and ends by name and scope; from any thread, under the GIL."""

    def __init__(self) -> None:
        self.begun: Counter[tuple[str, RecordScope]] = Counter()
        self.ended: Counter[tuple[str, RecordScope]] = Counter()
        self.threads: set[int] = set()
        self.changed = threading.Condition()

    def start(self, function: Any) -> tuple[str, RecordScope]:
        key = function.name(), function.scope()
        self.begun[key] += 1
        self.threads.add(function.thread_id())
        return key

    def end(self, _function: Any, key: tuple[str, RecordScope]) -> None:
        with self.changed:
            self.ended[key] += 1
            self.changed.notify_all()

    def callback(self) -> RecordFunctionCallback:
        return RecordFunctionCallback(self.start, self.end)

    def settle(self) -> None:
        """Work that another thread did is complete a moment before its range ends."""
        deadline = time.monotonic() + PATIENCE_S
        while self.ended != self.begun and time.monotonic() < deadline:
            with self.changed:
                self.changed.wait(0.1)
        assert self.ended == self.begun

    def calls(self) -> int:
        return sum(self.begun.values())

    def names(self) -> Counter[str]:
        names: Counter[str] = Counter()
        for (name, _), count in self.begun.items():
            names[name] += count
        return names


@pytest.fixture(autouse=True)
def no_callbacks_left() -> Iterator[None]:
    yield
    observing.clear_callbacks()


@pytest.fixture
def one() -> Any:
    return torch.ones(2)


def is_set_to(tensor: Any, times: int = 1) -> None:
    """An operator that calls no other."""
    for _ in range(times):
        tensor.is_set_to(tensor)


class TestWhatACallbackSees:
    def test_the_calls_that_torch_profiler_sees(self) -> None:
        training, counting = Training(), Counting()
        training.step()
        network, fork_and_wait = scripted_programs()
        network(torch.ones(2, 3)), fork_and_wait(torch.ones(3))
        from torch._C._profiler import _ExperimentalConfig

        everywhere = _ExperimentalConfig(profile_all_threads=True)
        with profile(activities=[ProfilerActivity.CPU], experimental_config=everywhere) as profiler:
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

    def test_the_profiler_sees_what_it_saw_without_it(self) -> None:
        def run() -> list[tuple[str, int, int, list[Any]]]:
            training = Training()
            with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
                training.step()
            events = sorted(profiler.profiler.kineto_results.events(), key=lambda event: event.correlation_id())
            return [(event.name(), event.scope(), event.start_thread_id(), event.shapes()) for event in events]

        plain = run()
        read: list[int] = []
        callback = RecordFunctionCallback(
            lambda function: read.append(len(function.inputs())), lambda function, _: read.append(len(function.outputs()))
        )
        observing.add_global_callback(callback.needs_inputs(True).needs_outputs(True).needs_ids(True))
        assert run() == plain
        assert len(read) >= 2 * len(plain)

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

    def test_held_tensors_outlive_the_operator_and_its_graph(self) -> None:
        kept: list[Any] = []
        callback = RecordFunctionCallback(lambda function: kept.extend(function.inputs())).needs_inputs(True)
        observing.add_global_callback(callback)
        training = Training()
        training.step()
        observing.clear_callbacks()
        del training
        assert len([repr(value) for value in kept]) > 1000


class TestWhichRunsItSees:
    @pytest.mark.parametrize(("probability", "least", "most"), [(0.0, 0, 0), (0.01, 120, 290), (1.0, CALLS, CALLS)])
    def test_sampling(self, one: Any, probability: float, least: int, most: int) -> None:
        counting = Counting()
        observing.add_global_callback(counting.callback().sampling_prob(probability))
        observing.set_record_function_seed_for_testing(7)
        is_set_to(one, CALLS)
        assert least <= sum(counting.begun.values()) <= most
        assert counting.ended == counting.begun

    def test_seeded_sampling_is_repeatable(self, one: Any) -> None:
        def run() -> list[int]:
            calls: list[int] = []
            position = 0
            observing.add_global_callback(RecordFunctionCallback(lambda _: calls.append(position)).sampling_prob(0.1))
            observing.set_record_function_seed_for_testing(11)
            for position in range(200):  # noqa: B007
                is_set_to(one)
            observing.clear_callbacks()
            return calls

        assert run() == run() != []

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
        here, everywhere = Counting(), Counting()
        handle = observing.add_thread_local_callback(here.callback())
        observing.add_global_callback(everywhere.callback())
        run_together(lambda: is_set_to(torch.ones(2)))
        assert not here.begun
        fork_and_wait(torch.ones(3))
        here.settle()
        assert here.names()["aten::relu"] == 2
        assert len(here.threads) > 1
        assert everywhere.names()["aten::is_set_to"] == 1
        observing.disable_callback(handle)
        before = here.calls()
        torch.ones(2)
        observing.reenable_callback(handle)
        is_set_to(torch.ones(2))
        assert here.calls() > before
        observing.clear_thread_local_callbacks()
        seen = here.calls()
        torch.ones(2)
        assert here.calls() == seen

    def test_a_thread_that_disabled_record_function_is_left_alone_but_by_the_profiler(self, one: Any) -> None:
        counting = Counting()
        observing.add_global_callback(counting.callback())
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            with observing.DisableRecordFunctionGuard():
                is_set_to(one)
            assert not counting.names()["aten::is_set_to"]
            is_set_to(one)
        assert counting.names()["aten::is_set_to"] == 1
        assert [event.name for event in profiler.events()].count("aten::is_set_to") == 2

    def test_a_captured_state_installs_them_in_another_thread(self, one: Any) -> None:
        counting = Counting()
        observing.add_thread_local_callback(counting.callback())
        state = observing.ThreadLocalState()
        observing.clear_thread_local_callbacks()

        def work() -> None:
            with observing.ThreadLocalStateGuard(state):
                is_set_to(one)
            is_set_to(one)

        run_together(work)
        assert counting.calls() == sum(counting.ended.values()) == 1

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

    def test_one_that_raises_is_removed_and_logged_once(self, one: Any, caplog: pytest.LogCaptureFixture) -> None:
        good, calls = Counting(), []

        def bad(function: Any) -> None:
            calls.append(function.name())
            raise ValueError("bad observer")

        observing.add_global_callback(RecordFunctionCallback(bad))
        observing.add_global_callback(RecordFunctionCallback(lambda _: None, lambda *_: bad(_[0])))
        observing.add_thread_local_callback(RecordFunctionCallback(bad))
        observing.add_global_callback(good.callback())
        with caplog.at_level(logging.WARNING, "otel_recfn"):
            is_set_to(one, 3)
        assert calls == ["aten::is_set_to"] * 3
        assert good.calls() == sum(good.ended.values()) == 3
        assert caplog.text.count("raised and was removed") == 3

    def test_what_the_program_was_raising_is_untouched(self) -> None:
        counting = Counting()
        observing.add_global_callback(counting.callback())
        with pytest.raises(RuntimeError, match="must match the size"):
            torch.ones(2) + torch.ones(3)
        assert counting.ended == counting.begun

    def test_added_and_removed_while_eight_threads_run(self) -> None:
        stop, counts = threading.Event(), [Counting() for _ in range(20)]

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

    def test_backward_in_several_threads_at_once(self) -> None:
        counting = Counting()
        observing.add_global_callback(counting.callback())
        trainings = [Training() for _ in range(4)]
        run_together(*[training.step for training in trainings])
        observing.clear_callbacks()
        assert counting.ended == counting.begun
        assert counting.names()["Optimizer.step#AdamW.step"] == 4

    def test_forks_while_the_main_thread_waits(self) -> None:
        _, fork_and_wait = scripted_programs()
        counting = Counting()
        observing.add_global_callback(counting.callback())
        for _ in range(50):
            fork_and_wait(torch.ones(3))
        counting.settle()
        assert counting.names()["aten::relu"] == 100


PROGRAM = """
import logging, sys, threading
logging.basicConfig(format="%(levelname)s %(message)s", stream=sys.stdout, level=logging.INFO)
from otel_recfn import observing
from otel_recfn.observing import RecordFunctionCallback
names = []
callback = RecordFunctionCallback(lambda function: names.append(function.name()))
def use():
    import torch
    tensor = torch.ones(2)
    tensor.is_set_to(tensor)
    return names.count("aten::is_set_to")
"""
Run = Callable[..., Any]


class TestPrograms:
    def test_torch_imported_later(self, run_program: Run) -> None:
        run_program(PROGRAM + "observing.add_global_callback(callback); assert 'torch' not in sys.modules; assert use() == 1")

    def test_a_threads_own_and_torch_later(self, run_program: Run) -> None:
        run_program(PROGRAM + "observing.add_thread_local_callback(callback); assert use() == 1")

    def test_removed_before_torch_came(self, run_program: Run, tmp_path: Any) -> None:
        tmp_path.chmod(0o700)
        program = "observing.remove_callback(observing.add_global_callback(callback)); assert use() == 0"
        run_program(PROGRAM + program, OTEL_RECFN_CACHE_DIR=str(tmp_path / "cache"))
        assert not (tmp_path / "cache").exists()

    def test_nothing_is_compiled_without_a_callback(self, run_program: Run, tmp_path: Any) -> None:
        tmp_path.chmod(0o700)
        program = "assert use() == 0\nwith observing.DisableRecordFunctionGuard(): use()"
        run_program(PROGRAM + program, OTEL_RECFN_CACHE_DIR=str(tmp_path / "cache"))
        assert not (tmp_path / "cache").exists()

    def test_without_a_compiler_python_ranges_are_seen_and_it_is_said_once(self, run_program: Run, tmp_path: Any) -> None:
        tmp_path.chmod(0o700)
        done = run_program(
            PROGRAM
            + """
import torch
observing.add_global_callback(callback); observing.add_global_callback(callback)
assert use() == 0
with observing.RecordFunction() as range_: range_.before("python")
assert names == ["python", "python"]
""",
            OTEL_RECFN_CACHE_DIR=str(tmp_path / "cache"),
            PATH="",
            CXX="",
        )
        assert done.stdout.count("operators, only Python ranges: no C++ compiler found") == 1

    def test_a_forked_child_goes_on(self, run_program: Run) -> None:
        run_program(
            PROGRAM
            + """
import os, torch
observing.add_global_callback(callback)
assert use() == 1
stop = threading.Event()
def work():
    while not stop.is_set(): torch.ones(2).is_set_to(torch.ones(2))
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads: thread.start()
def forked_inside(function):
    if function.name() == "aten::is_set_to" and threading.current_thread() is threading.main_thread() and not os.fork():
        names.clear(); os._exit(0)
inside = observing.add_global_callback(RecordFunctionCallback(forked_inside))
torch.ones(2).is_set_to(torch.ones(2))
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
observing.remove_callback(inside)
child = os.fork()
if child == 0:
    names.clear()
    sys.exit(0 if use() == 1 else 1)  # through atexit, where nobody must wait for the parent's threads
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
stop.set()
for thread in threads: thread.join()
"""
        )

    def test_exit_with_a_callback_that_ran_in_torchs_own_threads(self, run_program: Run) -> None:
        # Not while they run operators: there PyTorch itself aborts now and then, also in a program without callbacks.
        run_program(
            PROGRAM
            + """
import torch
def work(x: torch.Tensor):
    for _ in range(1000): x.add_(1)
    return x
def launch(x: torch.Tensor):
    return torch.jit.fork(work, x)
running = threading.Event()
main = threading.get_ident()
def start(function):
    if threading.get_ident() != main: running.set()
observing.add_global_callback(RecordFunctionCallback(start, lambda *_: None))
future = torch.jit.script(launch)(torch.ones(2))
assert running.wait(20)
future.wait()
"""
        )

    def test_a_data_loader_with_workers(self, run_program: Run) -> None:
        run_program(
            PROGRAM
            + """
import torch
if __name__ == "__main__":
    observing.add_global_callback(callback)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.arange(64.0)), batch_size=8, num_workers=2)
    assert sum(batch[0].sum().item() for batch in data) == 2016
    assert names.count("aten::sum") >= 8
"""
        )

    @pytest.mark.parametrize("error", ["KeyboardInterrupt", "TimeIsUp"])
    def test_an_interrupt_in_a_callback_reaches_the_program(self, run_program: Run, error: str) -> None:
        done = run_program(
            PROGRAM
            + f"""
import signal, torch
class TimeIsUp(Exception): pass
def handler(*_): raise {error}
signal.signal(signal.SIGUSR1, handler)
def start(function):
    if function.name() == "aten::is_set_to": signal.raise_signal(signal.SIGUSR1)
observing.add_global_callback(RecordFunctionCallback(start))
seen = 0
for _ in range(50):
    try:
        use()
        for _ in range(10): pass
    except {error}:
        seen += 1
print("seen", seen, observing.has_callbacks())
"""
        )
        assert done.stdout.splitlines()[-1] == "seen 50 True"
