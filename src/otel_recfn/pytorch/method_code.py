"""Which code a call of a module or a step of an optimizer runs: its method, looked at once for each function."""

from __future__ import annotations

from typing import Any

from otel_recfn.support.code_text import code_text
from otel_recfn.support.weak_identity import WeakIdentityMap


class MethodCode:
    """The texts of the functions that were seen, for as long as these live.

    Args:
        method: what it is called: ``forward``, ``step``.
    """

    def __init__(self, method: str) -> None:
        self._method = method
        self._texts: WeakIdentityMap[str] = WeakIdentityMap()

    def of(self, subject: Any) -> str:
        """``file(line): module.Class.forward``; empty where the call runs no Python function that we know."""
        function = vars(subject).get(self._method) or getattr(type(subject), self._method, None)
        function = getattr(function, "__func__", function)
        known = self._texts.get(function)
        return known if known is not None else self._look(function)

    def _look(self, function: Any) -> str:
        text = code_text(function)
        try:
            self._texts.set(function, text)
        except TypeError:  # some objects can't be referred to weakly: None, for one
            pass
        return text
