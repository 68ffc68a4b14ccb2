"""What a legacy run gives in the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableSequence

from otel_recfn.legacy.event import LegacyEvent
from otel_recfn.store.averages import KeyAverages


class ThreadEventLists(list["MutableSequence[LegacyEvent]"]):
    """The events of each thread, in their order; each event is made when it is first looked at.

    Attributes:
        lost: what ran and is not in them, by counter; empty where all is.
    """

    def __init__(
        self,
        lists: Iterable[MutableSequence[LegacyEvent]] = (),
        averages: Callable[[], KeyAverages] | None = None,
        lost: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(lists)
        self._averages = averages
        self.lost = dict(lost or {})

    def key_averages(self) -> KeyAverages:
        """Count, total and self time per name, of the ranges of this process; as those of ``profile``."""
        averages = self._averages() if self._averages is not None else KeyAverages(())
        return averages.with_losses(self.lost)
