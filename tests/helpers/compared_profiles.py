"""What two profilers saw of the same run, compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def assert_same_in_each_thread(
    ours: Mapping[int, Sequence[object]], theirs: Mapping[int, Sequence[object]]
) -> None:
    """The same threads, with the same events in the same order.

    What differs first is what fails.
    """
    assert set(ours) == set(theirs)
    for thread, events in ours.items():
        for number, (mine, other) in enumerate(zip(events, theirs[thread], strict=False)):
            assert mine == other, f"event {number} of thread {thread}: {mine} here, {other} there"
        assert len(events) == len(theirs[thread])
