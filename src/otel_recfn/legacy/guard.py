"""A legacy profiler run around a block.

Source: ``TLSLegacyProfilerGuard`` in torch/csrc/autograd/profiler_legacy.h.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType

from otel_recfn.legacy.config import ProfilerConfig, ProfilerDisableOptions
from otel_recfn.legacy.profiler import disable_profiler_legacy, enable_profiler_legacy
from otel_recfn.legacy.result import ThreadEventLists

log = logging.getLogger("otel_recfn")


class TLSLegacyProfilerGuard:
    """``with TLSLegacyProfilerGuard(config, result):`` profiles the block in this thread, and hands ``result`` its events.

    Args:
        config: what is recorded.
        result: called with the events of each thread, after the block. What it raises is logged and goes no further.
        options: how the run ends.
    """

    def __init__(
        self,
        config: ProfilerConfig,
        result: Callable[[ThreadEventLists], object] | None = None,
        options: ProfilerDisableOptions | None = None,
    ) -> None:
        self._config, self._result, self._options = config, result, options

    def __enter__(self) -> TLSLegacyProfilerGuard:
        enable_profiler_legacy(self._config)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        lists = disable_profiler_legacy(self._options)
        if self._result is None:
            return
        try:
            self._result(lists)
        except Exception:
            log.exception("the function that is given a profiler's events failed")
