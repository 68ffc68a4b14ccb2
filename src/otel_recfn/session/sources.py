"""The sources of a session: the list of them, and which are enabled.

A source that fails is disabled, taken out and logged; the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from otel_recfn.model.events import EventSource
from otel_recfn.pytorch.called_objects import CALL_FILES, InstanceNames, ModuleCalls
from otel_recfn.pytorch.compilation import Compilations
from otel_recfn.pytorch.launches import RemoteCalls
from otel_recfn.pytorch.modules import ModuleRanges
from otel_recfn.pytorch.observer import TorchObserver
from otel_recfn.recording.recorder import Recorder
from otel_recfn.sources.calls import CallSource, ProgramTexts
from otel_recfn.sources.otel_context import ContextWatcher
from otel_recfn.sources.protocol import Source, Wanted
from otel_recfn.sources.python_samples import PythonSamples
from otel_recfn.support.interruptions import raised_by_signal_handler
from otel_recfn.support.logs import log


def process_sources(recorder: Recorder) -> list[Source]:
    """Every source, in the order in which they are enabled; they are disabled in the reverse
    order.
    """
    observer = TorchObserver()
    names = InstanceNames()
    modules = ModuleRanges(names)
    texts = partial(ProgramTexts, ModuleCalls(names, modules.announces_now), CALL_FILES)
    return [
        ContextWatcher(recorder),
        RemoteCalls(),
        observer,
        modules,
        Compilations(),
        CallSource(texts),
        PythonSamples(),
    ]


@dataclass(eq=False)
class _Switch:
    """A source with its state."""

    source: Source
    prepared: bool = False
    enabled_with: Wanted | None = None
    """The selection that it was enabled with; None while it is disabled."""

    def is_wanted(self, sources: frozenset[EventSource]) -> bool:
        return self.source.announces is None or self.source.announces in sources


class Sources:
    """A set of sources, enabled in this order as captures ask.

    The session lets one thread at a time call ``follow``.
    """

    def __init__(self, sources: Sequence[Source], wanted: Callable[[], Wanted | None]) -> None:
        self._switches = [_Switch(source) for source in sources]
        self._wanted_now = wanted

    def modules_needed(self, asked: frozenset[EventSource]) -> list[str]:
        """The modules that the program has to import before all that is asked for can be
        enabled.
        """
        return sorted(
            {
                switch.source.needs
                for switch in self._wanted_switches(asked)
                if switch.source.needs is not None
            }
        )

    def prepare(self, module: str | None, asked: frozenset[EventSource]) -> None:
        """Prepare the sources that are asked for and need this module (None: no module).

        May take seconds.
        """
        for switch in self._wanted_switches(asked):
            if switch.source.needs == module:
                switch.prepared = bool(self._guarded(switch, switch.source.prepare))

    def follow(self) -> None:
        """Enable every prepared source that is wanted now, and disable the others."""
        wanted = self._wanted_now()
        for switch in (
            list(self._switches) if wanted is not None else list(reversed(self._switches))
        ):
            if wanted is None or not switch.is_wanted(wanted.sources):
                if switch.enabled_with is not None:
                    self._guarded(switch, switch.source.disable)
                    switch.enabled_with = None
            elif switch.prepared and switch.enabled_with != wanted:
                switch.enabled_with = wanted
                self._guarded(switch, partial(switch.source.enable, wanted))

    def check(self, *, last: bool) -> None:
        """Let the enabled sources check that all is as they left it."""
        for switch in list(self._switches):
            if switch.enabled_with is not None and switch.source.check is not None:
                self._guarded(switch, partial(switch.source.check, last=last))

    def _wanted_switches(self, asked: frozenset[EventSource]) -> list[_Switch]:
        return [switch for switch in self._switches if switch.is_wanted(asked)]

    def _guarded(self, switch: _Switch, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            # The program's own error, as if it had been raised before.
            if raised_by_signal_handler(error):
                raise
            log.exception(
                "the source %r failed and is used no more; the others go on", switch.source.name
            )
            self._switches = [other for other in self._switches if other is not switch]
            with suppress(Exception):  # the first error was logged already
                switch.source.disable()
            return None
