"""The schedule of a profile: which of its steps are recorded."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

RECORD = "RECORD"
RECORD_AND_SAVE = "RECORD_AND_SAVE"
RECORDED = (RECORD, RECORD_AND_SAVE)
"""The actions of a schedule that record."""
MAX_STEPS_EXAMINED = 100_000
"""The maximum number of steps for which a schedule is asked whether it records them, for a message:
more would keep the user waiting.
"""


class StepSchedule:
    """A schedule as ``torch.profiler.schedule(...)`` returns it: a function that says for the
    number of a step what to do in it.

        NONE, WARMUP       no recording
        RECORD             a recording, which continues in the next step if that is recorded too
        RECORD_AND_SAVE    the last step of a recording

    Args:
        schedule: the function; None: one recording, of all steps.
    """

    def __init__(self, schedule: Any) -> None:
        self._schedule = schedule

    @property
    def has_steps(self) -> bool:
        """Whether steps are recorded apart from each other."""
        return self._schedule is not None

    def action(self, number: int) -> str:
        """The action for the step with this number."""
        if self._schedule is None:
            return RECORD
        action = self._schedule(number)
        return str(getattr(action, "name", action))

    def next_recorded(self, first: int) -> int | None:
        """The number of the next step that is recorded, from this one on; None if there is none, or
        if the schedule can't be asked.
        """
        numbers = range(first, first + MAX_STEPS_EXAMINED)
        with suppress(Exception):  # the program's own function may know no more steps
            return next((number for number in numbers if self.action(number) in RECORDED), None)
        return None
