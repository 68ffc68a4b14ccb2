"""Traces of ours end where nothing ran for a while, and are named by what a drain has seen: both
depend on the machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from helpers.timeouts import PATIENCE_S
from otel_recfn.recording import recorder
from otel_recfn.session import draining
from otel_recfn.sinks.spans import step_traces


@contextmanager
def without_pauses() -> Iterator[None]:
    """However long the machine pauses, no trace ends by that, and only flushes and the end
    drain.
    """
    patience_ns = int(PATIENCE_S * 1e9)
    with ExitStack() as stack:
        for module in (step_traces, recorder):
            stack.enter_context(patch.object(module, "IDLE_NS", patience_ns))
            stack.enter_context(patch.object(module, "SHORT_IDLE_NS", patience_ns))
        stack.enter_context(patch.object(draining, "DRAIN_SECONDS", PATIENCE_S))
        yield
