"""What Python frees between operators, and torch.profiler, which refuses to start where another
profiler is told of that.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.autograd.profiler_legacy as theirs_legacy  # noqa: E402
import torch.profiler as theirs  # noqa: E402

from helpers.torch_programs import run_together  # noqa: E402
from otel_recfn import profile  # noqa: E402
from otel_recfn.callbacks.state import propagate  # noqa: E402
from otel_recfn.legacy import (  # noqa: E402
    ProfilerConfig,
    ProfilerState,
    disable_profiler_legacy,
    enable_profiler_legacy,
)
from otel_recfn.model.events import RowKind  # noqa: E402

pytestmark = pytest.mark.torch

NUMBERS = 1000
BYTES = 4 * NUMBERS


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """PyTorch's legacy profiler starts, which it doesn't where its place is taken."""
    yield
    with theirs_legacy.profile():
        pass


def free_one() -> None:
    x = torch.ones(NUMBERS)
    del x


def freed(prof: profile) -> int:
    """How often it was recorded, outside every range."""
    events = prof.events()
    return sum(
        event.kind == RowKind.MEMORY and event.nbytes == -BYTES and event.parent == 0
        for event in events
    )


def their_profiler() -> Any:
    return theirs.profile(activities=[theirs.ProfilerActivity.CPU], profile_memory=True)


def test_it_is_recorded_in_the_thread_that_profiles() -> None:
    with profile(profile_memory=True) as prof:
        free_one()
        run_together(free_one)
    assert freed(prof) == 1


@pytest.mark.parametrize(
    "theirs_of", [their_profiler, theirs_legacy.profile], ids=["torch.profiler", "legacy"]
)
def test_their_profiler_starts_and_what_is_freed_after_it_is_recorded_again(theirs_of: Any) -> None:
    with profile(profile_memory=True) as prof:
        with theirs_of():
            free_one()
        assert freed(prof) == 0
        free_one()
    assert freed(prof) == 1


def test_their_profiler_is_told_what_is_freed_in_its_time() -> None:
    with profile(profile_memory=True), their_profiler() as torch_profile:
        free_one()
    numbers = [
        event.nbytes()
        for event in torch_profile.profiler.kineto_results.events()
        if event.name() == "[memory]"
    ]
    assert numbers == [BYTES, -BYTES]


def test_torch_profiler_works_after_another_thread_stops_our_profile() -> None:
    def start_it_and_profile_with_theirs(prof: profile) -> None:
        prof.start()
        run_together(prof.stop)
        with their_profiler():
            free_one()

    run_together(lambda: start_it_and_profile_with_theirs(profile(profile_memory=True)))


def test_in_a_forked_child_their_profiler_starts() -> None:
    with profile(profile_memory=True):
        child = os.fork()
        if child == 0:
            with their_profiler():
                free_one()
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def legacy_frees(lists: Any) -> list[int]:
    return [
        event.cpu_memory_usage for events in lists for event in events if event.cpu_memory_usage < 0
    ]


def test_a_legacy_run_has_it_in_every_thread_that_takes_part() -> None:
    enable_profiler_legacy(ProfilerConfig(ProfilerState.CPU, profile_memory=True))
    free_one()
    thread = threading.Thread(target=propagate(free_one))
    thread.start()
    thread.join()
    run_together(free_one)
    with their_profiler():
        pass
    assert legacy_frees(disable_profiler_legacy()) == [-BYTES, -BYTES]
