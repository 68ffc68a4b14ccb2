"""Sampling: pairs stay pairs, rates are right, draws are few and repeatable."""

from __future__ import annotations

import math
import random
import sys
from types import FrameType
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.example_counts import examples
from helpers.runtime_helpers import FUNCTION, USER, Notes, in_thread, pairs, run_range
from otel_recfn import record_function
from otel_recfn.callbacks.callback import RecordFunctionCallback, tries_until_run
from otel_recfn.callbacks.record_function import RecordFunction, observe_range
from otel_recfn.callbacks.registry import (
    add_global_callback,
    add_thread_local_callback,
    get_step_callbacks,
    has_callbacks,
    remove_callback,
)
from otel_recfn.callbacks.state import set_record_function_seed_for_testing
from otel_recfn.callbacks.thread_locals import current
from otel_recfn.model.events import RecordScope
from otel_recfn.recording.recorder import Recorder

pytestmark = pytest.mark.usefixtures("runtime")


def count_runs(calls: int, scope: RecordScope = FUNCTION) -> int:
    return sum(1 for _ in range(calls) if get_step_callbacks(scope).callbacks)


def sampled(probability: float) -> RecordFunctionCallback:
    return RecordFunctionCallback(lambda fn: None).sampling_prob(probability)


@pytest.mark.one_python
@pytest.mark.parametrize(
    ("probability", "calls"),
    [(0.0, 1000), (1e-3, 200_000), (0.01, 10**5), (0.1, 10**5), (0.5, 10**5), (1.0, 10**4)],
)
def test_the_rate_over_many_calls_is_within_five_standard_deviations(
    probability: float, calls: int
) -> None:
    set_record_function_seed_for_testing(20_240_229)
    add_global_callback(sampled(probability))
    deviation = math.sqrt(calls * probability * (1 - probability))
    assert abs(count_runs(calls) - calls * probability) <= 5 * deviation


def test_two_sampled_callbacks_are_sampled_apart() -> None:
    set_record_function_seed_for_testing(3)
    often = add_global_callback(sampled(0.5))
    seldom = add_global_callback(sampled(0.05))
    runs = {often: 0, seldom: 0}
    both = 0
    for _ in range(20_000):
        handles = [pair.handle for pair in get_step_callbacks(FUNCTION).callbacks]
        both += len(handles) == 2
        for handle in handles:
            runs[handle] += 1
    assert abs(runs[often] - 10_000) < 400
    assert abs(runs[seldom] - 1_000) < 160
    assert abs(both - 500) < 120


def test_a_start_that_is_not_sampled_has_no_end() -> None:
    set_record_function_seed_for_testing(1)
    notes = Notes()
    add_global_callback(notes.callback().sampling_prob(0.3))
    for number in range(200):
        run_range(str(number))
    starts = [name for what, name in notes if what == "start"]
    assert 30 < len(starts) < 90
    assert notes == [note for name in starts for note in (("start", name), ("end", name))]


def test_an_improbable_callback_draws_once_for_many_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    draws: list[float] = []

    def counted(generator: Any, probability: float) -> int:
        draws.append(probability)
        return tries_until_run(generator, probability)

    # That a draw is made per run and not per range is a cost, which nothing else shows.
    monkeypatch.setattr("otel_recfn.callbacks.callback.tries_until_run", counted)
    set_record_function_seed_for_testing(9)
    add_thread_local_callback(sampled(1e-3))
    runs = count_runs(20_000)
    assert len(draws) == runs + 1


def test_a_callback_is_sampled_on_where_a_draw_was_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add_global_callback(sampled(0.5))
    count_runs(1)
    with monkeypatch.context() as patched:
        # As if Ctrl-C came in the middle of a draw, which no test can time.
        patched.setattr(
            "otel_recfn.callbacks.callback.tries_until_run", Mock(side_effect=KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            count_runs(1_000)
    assert abs(count_runs(10_000) - 5_000) <= 5 * 50


@pytest.mark.parametrize("kinds", ["first, then the other", "the other, then the first"])
def test_the_rate_is_right_with_ranges_of_signal_handlers_wherever_they_interrupt(
    runtime: Recorder, kinds: str
) -> None:
    """A handler runs between any two lines of the sampling, and has two ranges."""
    seen: list[str] = []
    for probability in (0.3, 0.05):
        add_global_callback(
            RecordFunctionCallback(lambda fn: seen.append(fn.name()))
            .sampling_prob(probability)
            .scopes({USER})
        )
    set_record_function_seed_for_testing(5)
    in_order = (
        (run_other, record_function_range)
        if kinds.startswith("first")
        else (record_function_range, run_other)
    )
    until_interrupted, begun = 0, 0

    def at_line(frame: FrameType, _event: str, _argument: Any) -> Any:
        nonlocal begun, until_interrupted
        if not frame.f_code.co_filename.endswith(
            ("callbacks/callback.py", "callbacks/registry.py")
        ):
            return None
        until_interrupted -= 1
        if until_interrupted == 0 and not current().in_callback:
            begun += 2
            for run in in_order:
                run()
        return at_line

    before = sys.gettrace()
    sys.settrace(at_line)
    try:
        for number in range(4_000):
            until_interrupted = 1 + number % 150
            for _ in range(12):
                record_function_range()
            begun += 12
    finally:
        sys.settrace(before)
    deviation = math.sqrt(begun * (0.3 * 0.7 + 0.05 * 0.95))
    assert abs(len(seen) - 0.35 * begun) <= 5 * deviation


def run_other() -> None:
    run_range("other", USER)


def record_function_range() -> None:
    with record_function("range"):
        pass


@pytest.mark.parametrize(("probability", "most"), [(0.0, 1), (1e-9, 1), (0.01, 200)])
def test_ranges_that_no_callback_wants_are_left_to_the_recorder_without_asking(
    runtime: Recorder, monkeypatch: pytest.MonkeyPatch, probability: float, most: int
) -> None:
    observer = Mock(side_effect=observe_range)
    # That nobody is asked is a cost, which nothing else shows.
    monkeypatch.setattr("otel_recfn.callbacks.registry._observer", observer)
    add_global_callback(sampled(probability))
    for _ in range(5_000):
        record_function_range()
    assert 1 <= observer.call_count <= most


@pytest.mark.parametrize("probability", [0.999999, 0.5, 1e-9, 1e-300])
def test_tries_are_at_least_one_for_every_probability(probability: float) -> None:
    generator = random.Random(1)
    assert all(tries_until_run(generator, probability) >= 1 for _ in range(1_000))


KINDS = st.lists(
    st.sampled_from(["record_function", "RecordFunction", "other scope"]), max_size=400
)


@examples(60)
@given(kinds=KINDS, seed=st.integers(0, 99))
def test_ranges_of_record_function_and_others_of_their_scope_are_drawn_from_together(
    runtime: Recorder, kinds: list[str], seed: int
) -> None:
    """Whichever kind a range is, the same ones are sampled, although some are left to the
    recorder without asking.
    """
    seen: list[str] = []
    handle = add_global_callback(
        RecordFunctionCallback(lambda fn: seen.append(fn.name())).sampling_prob(0.2).scopes({USER})
    )
    drawn = iter(draws(seed, len(kinds)))
    expected = [
        str(number) for number, kind in enumerate(kinds) if kind != "other scope" and next(drawn)
    ]
    set_record_function_seed_for_testing(seed)
    for number, kind in enumerate(kinds):
        if kind == "record_function":
            with record_function(str(number)):
                pass
        else:
            run_range(str(number), USER if kind == "RecordFunction" else FUNCTION)
    remove_callback(handle)
    assert seen == expected


def draws(seed: int, ranges: int) -> list[bool]:
    """Which of so many ranges in scope USER are sampled after this seed."""
    set_record_function_seed_for_testing(seed)
    return [bool(get_step_callbacks(USER).callbacks) for _ in range(ranges)]


@pytest.mark.parametrize("added_by_this_thread", [True, False])
def test_a_callback_that_comes_while_none_was_due_sees_the_next_range(
    runtime: Recorder, added_by_this_thread: bool
) -> None:
    notes = Notes()
    add_global_callback(sampled(0.0))
    with record_function("unseen"):
        pass
    if added_by_this_thread:
        add_thread_local_callback(notes.callback())
    else:
        in_thread(lambda: add_global_callback(notes.callback()))
    with record_function("seen"):
        pass
    assert notes == pairs("seen")


def test_ranges_that_a_callback_begins_take_part_in_the_draw_and_run_no_callbacks(
    runtime: Recorder,
) -> None:
    seen: list[str] = []

    def start(fn: RecordFunction) -> None:
        for _ in range(10):
            with record_function("inside"):
                pass

    add_global_callback(RecordFunctionCallback(start).scopes({FUNCTION}))
    add_global_callback(
        RecordFunctionCallback(lambda fn: seen.append(fn.name())).sampling_prob(0.3).scopes({USER})
    )
    drawn = draws(11, 11 * 100)
    set_record_function_seed_for_testing(11)
    for number in range(100):
        with record_function(str(number)):
            pass
        run_range("with ten ranges inside its callback")
    assert seen == [str(number) for number in range(100) if drawn[11 * number]]


def test_should_run_overrides_sampling_and_is_asked_after_the_scope() -> None:
    asked: list[RecordScope] = []

    def should_run(scope: RecordScope) -> bool:
        asked.append(scope)
        return len(asked) % 2 == 1

    notes = Notes()
    add_global_callback(notes.callback().sampling_prob(0.0).scopes({USER}).should_run(should_run))
    run_range("op", FUNCTION)
    for name in ("first", "second", "third"):
        run_range(name, USER)
    assert asked == [USER, USER, USER]
    assert [name for what, name in notes if what == "start"] == ["first", "third"]


def test_should_run_that_raises_removes_its_callback() -> None:
    notes = Notes()
    add_global_callback(notes.callback().should_run(lambda scope: 1 / 0))  # type: ignore[arg-type,return-value]
    run_range("op")
    assert notes == []
    assert not has_callbacks()
