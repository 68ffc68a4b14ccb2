"""On which of PyTorch's operators callbacks in Python run."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from counting import Counting, is_set_to  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402
from torch_programs import run_together, scripted_programs  # noqa: E402

from otel_recfn import observing  # noqa: E402
from otel_recfn.model.events import RecordScope  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("needs_observer", "no_callbacks_left")]

CALLS = 20_000


class TestWhichRunsItSees:
    @pytest.mark.parametrize(("probability", "least", "most"), [(0.0, 0, 0), (0.01, 120, 290), (1.0, CALLS, CALLS)])
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

    def test_a_thread_that_disabled_record_function_is_left_alone_by_the_profiler_too(self, one: Any) -> None:
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
