"""Replaces a function by a wrapper, and takes that back also where others wrap the same function."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, TypeAlias

log = logging.getLogger("otel_recfn")
After: TypeAlias = Callable[..., Any]


class WrappedFunction:
    """A wrapper around ``target``'s function ``name``: what the function returns passes through ``after``.

    Args:
        target: an object or module.
        name: of its function.
        after: gets what the function returned and its arguments; gives what the caller gets. What it raises is logged and
            not raised into the program.
    """

    def __init__(self, target: Any, name: str, after: After) -> None:
        self.target, self.name, self.active = target, name, True
        self._had_own = name in vars(target)
        self.original: Callable[..., Any] = getattr(target, name)
        self._after = after
        self._wrapper = functools.update_wrapper(functools.partial(self._watched), self.original)

    def install(self) -> None:
        """Set the wrapper in the function's place."""
        setattr(self.target, self.name, self._wrapper)

    def _watched(self, *args: Any, **kwargs: Any) -> Any:
        result = self.original(*args, **kwargs)
        if not self.active:
            return result
        try:
            return self._after(result, *args, **kwargs)
        except Exception:  # the program's call goes on
            log.debug("watching %s failed", self.name, exc_info=True)
            return result

    def remove(self) -> None:
        """Take the wrapper away, or, where somebody wrapped the function after us, only pass calls on."""
        self.active = False
        if vars(self.target).get(self.name) is not self._wrapper:
            return
        if self._had_own:
            setattr(self.target, self.name, self.original)
        else:
            delattr(self.target, self.name)
