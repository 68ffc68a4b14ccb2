"""The log of this package.

The program's log handlers and filters run inside its calls, and may raise.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from otel_recfn.support.interruptions import ignoring_errors

if TYPE_CHECKING:
    Adapter = logging.LoggerAdapter[logging.Logger]
else:  # CPython 3.10 has no subscript for it
    Adapter = logging.LoggerAdapter


class GuardedLog(Adapter):
    """A logger whose calls never raise what a handler of the program's does."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log a message, as if the caller had called the logger."""
        with ignoring_errors():
            self.logger.log(level, msg, *args, stacklevel=2, **kwargs)


log = GuardedLog(logging.getLogger("otel_recfn"), {})
