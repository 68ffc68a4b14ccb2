"""What the reference offers beside enable and disable: its config, type, guard, and what a
result is asked.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from otel_recfn import record_function
from otel_recfn.legacy import (
    ActiveProfilerType,
    EventKind,
    LegacyEvent,
    ProfilerConfig,
    ProfilerDisableOptions,
    ProfilerError,
    ProfilerState,
    ThreadEventLists,
    TLSLegacyProfilerGuard,
    disable_profiler_legacy,
    enable_profiler_legacy,
    profiler_config,
    profiler_enabled,
    profiler_type,
)

CONFIG = ProfilerConfig(
    ProfilerState.CPU, report_input_shapes=True, with_modules=True, trace_id="7"
)


def test_the_config_and_the_type_are_those_of_the_threads_run() -> None:
    assert profiler_type() == ActiveProfilerType.NONE
    with pytest.raises(ProfilerError, match="not enabled"):
        profiler_config()
    enable_profiler_legacy(CONFIG)
    assert (profiler_type(), profiler_config()) == (ActiveProfilerType.LEGACY, CONFIG)
    disable_profiler_legacy()
    assert profiler_type() == ActiveProfilerType.NONE


@pytest.mark.parametrize(
    "changed",
    [{}, {"with_stack": True}, {"with_flops": True}, {"with_modules": False, "trace_id": ""}],
)
def test_a_config_comes_back_from_its_values(changed: dict[str, Any]) -> None:
    config = replace(CONFIG, **changed)
    assert config.to_value_list()[:3] == [1, True, False]
    assert ProfilerConfig.from_value_list(config.to_value_list()) == config


@pytest.mark.parametrize("later", [[], ["more"], [True, True]])
def test_the_three_values_of_the_reference_are_a_config(later: list[Any]) -> None:
    assert ProfilerConfig.from_value_list([2, False, True, *later]) == ProfilerConfig(
        ProfilerState.CUDA, profile_memory=True
    )


@pytest.mark.parametrize(
    "values", [None, [], [1, True], [99, True, True], [True] * 3, [1, 0, True], ["CPU", True, True]]
)
def test_what_is_no_config_is_refused(values: Any) -> None:
    with pytest.raises(ProfilerError, match="Expected a"):
        ProfilerConfig.from_value_list(values)


def test_the_guard_profiles_its_block_and_hands_on_the_result() -> None:
    results: list[ThreadEventLists] = []
    with TLSLegacyProfilerGuard(CONFIG, results.append), record_function("inside"):
        assert profiler_enabled()
    assert not profiler_enabled()
    assert "inside" in {event.name for events in results[0] for event in events}


def test_a_result_function_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with TLSLegacyProfilerGuard(CONFIG, lambda lists: 1 / 0):
        pass
    assert "failed" in caplog.text
    with TLSLegacyProfilerGuard(CONFIG, None, ProfilerDisableOptions(consolidate=False)):
        pass


def test_a_result_is_summed_up_by_name_and_tells_what_was_lost() -> None:
    enable_profiler_legacy(CONFIG)
    for _ in range(3):
        with record_function("step"):
            pass
    lists = disable_profiler_legacy()
    assert isinstance(lists, list)
    assert {average.key: average.count for average in lists.key_averages()} == {"step": 3}
    assert lists.lost == {}


def test_small_things_of_events() -> None:
    event = LegacyEvent(EventKind.MARK, "m", 1, cpu_ns=5000)
    assert (event.cpu_ns, event.cpu_us, event.correlation_id) == (5000, 5.0, 0)
    assert event.extra_args == {}
