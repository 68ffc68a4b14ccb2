"""The selection that a capture's settings ask for."""

from __future__ import annotations

from dataclasses import replace

from otel_recfn.batches.selection import RECORD_FUNCTIONS, Selected
from otel_recfn.model.events import EventSource, Extra, scopes_mask
from otel_recfn.model.python_calls import ALL_CALLS, PythonCalls
from otel_recfn.settings.table import PROFILE_SETTINGS, SETTINGS, ProfileSettings, Settings


def selected(settings: Settings | ProfileSettings) -> Selected:
    """The scopes, extras and sources that ``instrument()`` or ``profile(...)`` was asked for."""
    table = SETTINGS if isinstance(settings, Settings) else PROFILE_SETTINGS
    wanted = [setting.selects for setting in table if getattr(settings, setting.name)]
    extras = Extra(sum({extra for extra in wanted if isinstance(extra, Extra)}))
    sources = RECORD_FUNCTIONS | {source for source in wanted if isinstance(source, EventSource)}
    calls = settings.python_calls if isinstance(settings.python_calls, PythonCalls) else ALL_CALLS
    return Selected(scopes_mask(settings.scopes), extras, sources, calls=calls)


def with_frames(wanted: Selected) -> Selected:
    """The selection to record for it: a Chrome trace with stacks shows calls of Python functions, as torch.profiler's does."""
    if not wanted.extras & Extra.STACK or EventSource.PYTHON_CALL in wanted.sources:
        return wanted
    return replace(wanted, sources=wanted.sources | {EventSource.PYTHON_CALL})
