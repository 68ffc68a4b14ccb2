"""What is recorded for settings: scopes, extras and sources.

Each setting says in the table what it selects.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

from otel_recfn.model.events import EventSource, Extra, scopes_mask
from otel_recfn.model.python_calls import ALL_CALLS, PythonCalls
from otel_recfn.settings.table import ProfileSettings, Settings

if TYPE_CHECKING:
    from otel_recfn.batches.selection import Selected


def select_by_settings(settings: Settings | ProfileSettings) -> Selected:
    """The scopes, extras and sources that the settings select."""
    # It imports numpy, and a program may record nothing.
    from otel_recfn.batches.selection import RECORD_FUNCTIONS, Selected

    wanted = [
        each.metadata.get("selects") for each in fields(settings) if getattr(settings, each.name)
    ]
    extras = Extra(sum({extra for extra in wanted if isinstance(extra, Extra)}))
    sources = RECORD_FUNCTIONS | {source for source in wanted if isinstance(source, EventSource)}
    calls = settings.python_calls if isinstance(settings.python_calls, PythonCalls) else ALL_CALLS
    return Selected(scopes_mask(settings.scopes), extras, sources, calls=calls)


def with_frames(wanted: Selected) -> Selected:
    """The selection to record for it: a Chrome trace with stacks shows calls of Python
    functions, as torch.profiler's does.
    """
    if not wanted.extras & Extra.STACK:
        return wanted
    return replace(wanted, sources=wanted.sources | {EventSource.PYTHON_CALL})
