"""Our tool of ``sys.monitoring``, which CPython has from 3.12 on: its events go to the tracer."""

from __future__ import annotations

import sys
from typing import Any

from otel_recfn import _native

TOOL = "otel-recfn"
TOOLS = (4, 3)
"""Places for tools that have no purpose of their own: those of debuggers, coverage and profilers are the program's."""
OF_C = ("CALL", "C_RETURN", "C_RAISE")
WITH_CALL = OF_C[1:]
"""CPython tells of these where it tells of ``CALL``."""


class Monitoring:
    """The tool: events of all threads of the interpreter, from ``start`` to ``stop``."""

    def __init__(self) -> None:
        self._tool: int | None = None
        self._events: dict[str, int] = {}
        """Of those that the tracer takes, the numbers."""
        self._set = 0
        """The events that it is told of."""
        self.is_taken = False
        """By the program, as it was told."""

    def start(self, *, c_calls: bool) -> bool:
        """Whether there is a place for the tool; then its events come."""
        monitoring: Any = getattr(sys, "monitoring", None)
        self._tool = _taken(monitoring) if monitoring is not None else None
        self.is_taken = False
        if self._tool is None:
            return False
        callbacks = _native.monitoring_callbacks()
        self._events = {name: getattr(monitoring.events, name) for name in callbacks}
        for name, callback in callbacks.items():
            monitoring.register_callback(self._tool, self._events[name], callback)
        self.change(c_calls=c_calls)
        return True

    def change(self, *, c_calls: bool) -> None:
        """Whether events of C functions come, too, where events come."""
        if self._has_place():
            left_out = WITH_CALL if c_calls else OF_C
            self._set = sum([number for name, number in self._events.items() if name not in left_out])
            _monitoring().set_events(self._tool, self._set)

    def has_been_taken(self) -> bool:
        """Whether it is news that the program has taken its place or its events away."""
        if self._tool is None or self.is_taken:
            return False
        self.is_taken = not self._has_place() or _monitoring().get_events(self._tool) & self._set != self._set
        return self.is_taken

    def stop(self) -> None:
        """No more events."""
        tool, self._tool = self._tool, None
        if tool is None:
            return
        monitoring = _monitoring()
        if monitoring.get_tool(tool) is None:  # freed by the program: its events come until they are switched off
            monitoring.use_tool_id(tool, TOOL)
        if monitoring.get_tool(tool) != TOOL:
            return
        monitoring.set_events(tool, 0)
        for number in self._events.values():
            monitoring.register_callback(tool, number, None)
        monitoring.free_tool_id(tool)

    def _has_place(self) -> bool:
        """Whether its place is still its own: a program may free the places of others, and take them."""
        return self._tool is not None and bool(_monitoring().get_tool(self._tool) == TOOL)


def _monitoring() -> Any:
    return sys.monitoring  # type: ignore[attr-defined,unused-ignore]


def _taken(monitoring: Any) -> int | None:
    for tool in TOOLS:
        if monitoring.get_tool(tool) is None:
            monitoring.use_tool_id(tool, TOOL)
            return tool
    return None
