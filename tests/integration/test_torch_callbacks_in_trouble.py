"""Callbacks on PyTorch's operators that recurse, raise, come and go under load: the program never notices."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from counting import Counting, is_set_to  # noqa: E402
from torch_programs import run_together  # noqa: E402

from otel_recfn import observing  # noqa: E402
from otel_recfn.model.events import RecordScope  # noqa: E402
from otel_recfn.observing import RecordFunctionCallback  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("needs_observer", "no_callbacks_left")]


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
        assert caplog.text.count("raised and was removed (on the range 'aten::is_set_to')") == 3

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
