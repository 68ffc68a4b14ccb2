"""Tells, when a capture ends, what was lost meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from otel_recfn.session.capture import Capture

log = logging.getLogger("otel_recfn")

_NOTHING: Mapping[str, int] = {}


class Losses:
    """What had been lost before each capture began."""

    def __init__(self) -> None:
        self._before: dict[Capture, Mapping[str, int]] = {}

    def begin(self, capture: Capture, lost: Mapping[str, int]) -> None:
        """Note, when a capture begins, how much had been lost by then."""
        self._before[capture] = lost

    def tell(self, capture: Capture, lost: Mapping[str, int]) -> None:
        """Log, when a capture has ended, what was lost since it began."""
        before = self._before.get(capture)
        if before is None:  # it never began, or this was told
            return
        more = {name: count - before.get(name, 0) for name, count in lost.items()}
        told = ", ".join([f"{name}={count}" for name, count in more.items() if count > 0])
        if told:
            log.warning("not everything that ran was kept: %s", told)
        self._before.pop(capture, None)  # last: it is told again where there was no memory for it

    def after_fork_in_child(self) -> None:
        """In a child: counts begin anew."""
        self._before = dict.fromkeys(self._before, _NOTHING)
