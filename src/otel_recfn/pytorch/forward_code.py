"""Which code a module call runs: its ``forward``, looked at once for each function."""

from __future__ import annotations

from typing import Any

from otel_recfn.support.code_text import code_text
from otel_recfn.support.weak_identity import WeakIdentityMap


class ForwardCode:
    """The texts of the functions that were seen, for as long as these live."""

    def __init__(self) -> None:
        self._texts: WeakIdentityMap[str] = WeakIdentityMap()

    def of(self, module: Any) -> str:
        """``file(line): module.Class.forward``; empty where the call runs no Python function that we know."""
        function = vars(module).get("forward") or getattr(type(module), "forward", None)
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
