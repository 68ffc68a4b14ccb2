"""Settings for a child that isn't forked. This module must not import numpy, since a program may record nothing."""

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
"""The most bytes of one setting, since each child gets them."""


def handed_over(settings: Settings) -> dict[str, bytes]:
    """The settings, each pickled on its own, as a child may know their classes only later. Paths and variables are resolved
    here, where the parent has them. What can't be pickled is left out: there the child has its default."""
    found: dict[str, bytes] = {}
    for each in fields(settings):
        value = getattr(settings, each.name)
        if each.name == "span_hook" and value is not None and not isinstance(value, FunctionType):
            continue  # a method's object may be a whole model
        if each.name == "chrome_trace" and value is not None:
            with suppress(OSError):  # if the working directory was removed
                value = absolute(value)
        with suppress(Exception):  # pickling an object of the program's may raise anything
            pickled = pickle.dumps(value)
            if len(pickled) <= MOST_BYTES:
                found[each.name] = pickled
    return found


def taken_over(pickled: Mapping[str, bytes]) -> dict[str, Any]:
    """The keywords of ``instrument()`` in the child."""
    found: dict[str, Any] = {}
    for name, value in pickled.items():
        with suppress(Exception):  # a class that the child doesn't have
            found[name] = pickle.loads(value)
    with suppress(Exception):
        found["sinks"] = [sink for each in found.pop("sinks", ()) if (sink := each.after_fork_in_child()) is not None]
    return found
