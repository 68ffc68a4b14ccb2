"""Settings on their way to a child that isn't forked. It must not import numpy: a program may record nothing."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from types import FunctionType
from typing import Any

from otel_recfn.settings.table import Settings
from otel_recfn.sinks.growing_file import absolute

MOST_BYTES = 1 << 16
"""Of one setting: each child gets them."""


def handed_over(settings: Settings) -> dict[str, bytes]:
    """The settings, pickled, since the child may not know their classes before it uses them, and as of now: it may have another
    working directory, and other environment variables. What can't be pickled is left out, as a sink with a lock: the child has
    the default then, which for a provider is its own global one."""
    found: dict[str, bytes] = {}
    for each in fields(settings):
        value = getattr(settings, each.name)
        if each.name == "span_hook" and value is not None and not isinstance(value, FunctionType):
            continue  # a method's object may be a whole model
        if each.name == "chrome_trace" and value is not None:
            with suppress(OSError):  # the working directory was removed
                value = absolute(value)
        with suppress(Exception):  # whatever an object of the program's raises that can't be pickled
            pickled = pickle.dumps(value)
            if len(pickled) <= MOST_BYTES:
                found[each.name] = pickled
    return found


def taken_over(pickled: Mapping[str, bytes]) -> dict[str, Any]:
    """As keywords of ``instrument()``, in the child."""
    found: dict[str, Any] = {}
    for name, value in pickled.items():
        with suppress(Exception):  # a class that the child doesn't have
            found[name] = pickle.loads(value)
    with suppress(Exception):
        found["sinks"] = [sink for each in found.pop("sinks", ()) if (sink := each.after_fork_in_child()) is not None]
    return found
