"""Which steps of a profile are recorded, as a schedule of ``torch.profiler`` says."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from otel_recfn.recording.recorder import recorder

RECORDED = ("RECORD", "RECORD_AND_SAVE")


class StepSchedule:
    """Begins and ends recordings between steps. Used by one thread at a time.

    Each call is given the profile whose steps they are: kept here, it would be freed by a collection of cycles alone.

    Args:
        schedule: gives the action for the step of a number, as ``torch.profiler.schedule(...)`` does; None: all are recorded.
    """

    def __init__(self, schedule: Callable[[int], Any] | None) -> None:
        self._schedule = schedule
        self.number = 0
        self._action = "NONE"
        self._open: AbstractContextManager[Any] | None = None

    def start(self, recordings: Any) -> None:
        """The first step begins."""
        self.number = 0
        self._enter(recordings, self._action_of(0))

    def step(self, recordings: Any) -> None:
        """The next step begins."""
        self._close_range()
        before, now = self._action, self._action_of(self.number + 1)
        self.number += 1
        if before == "RECORD_AND_SAVE":
            recordings._finish()
            recordings._tell_ready()
        elif before == "RECORD" and now not in RECORDED:
            recordings._finish()
        self._enter(recordings, now, goes_on=before == "RECORD")

    def stop(self, recordings: Any) -> None:
        """The last step ends, and what is recorded is ready, whatever the schedule wanted of later steps."""
        self._close_range()
        before, self._action = self._action, "NONE"
        if before in RECORDED:
            recordings._finish()
            recordings._tell_ready()

    def _enter(self, recordings: Any, action: str, *, goes_on: bool = False) -> None:
        self._action = "NONE"  # where it can't begin
        if action in RECORDED and not goes_on:
            recordings._begin()
        self._action = action
        if action in RECORDED and self._schedule is not None:
            self._open = recorder.record_function(f"ProfilerStep#{self.number}")
            self._open.__enter__()

    def _close_range(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            opened.__exit__(None, None, None)

    def _action_of(self, number: int) -> str:
        if self._schedule is None:
            return "RECORD"
        action = self._schedule(number)
        return str(getattr(action, "name", action))
