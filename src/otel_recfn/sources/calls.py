"""The source of Python calls, which traces every thread, also those that run already.

By ``sys.monitoring`` where CPython has it (from 3.12 on), else by the profile function of each
thread. For each thread there is the stack of calls that were seen to begin:

    call    name of the code object ─► `begin_call` ─► push
    return                             end                 ◄─ pop

An exit ends the innermost call, also where a greenlet has switched stacks meanwhile, so calls
always nest. An exit of a frame whose call isn't on the stack ends none: the call began long before,
or another tool of ``sys.monitoring`` raised at its begin or return, which CPython reports as one
more end.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeAlias

from otel_recfn import _native
from otel_recfn.model.events import EventSource
from otel_recfn.model.python_calls import ALL_CALLS, PythonCalls, function_paths
from otel_recfn.sources.protocol import Source, Wanted
from otel_recfn.support import forks
from otel_recfn.support.code_names import python_call_name
from otel_recfn.support.forks import Order, OwnThread, around_forks, is_own_thread
from otel_recfn.support.logs import log

# --- the names of calls

OWN = str(Path(__file__).parents[1]) + os.sep
OWN_THAT_CALLS = OWN + os.path.join("recording", "ranges.py"), OWN + "callbacks" + os.sep
"""The modules of ours that call functions of the program, which are to be seen."""

FrameText: TypeAlias = "Callable[[FrameType], str | None]"
"""A function that names a call by its frame; None: the call is not shown."""
FrameNamer: TypeAlias = "Callable[[CodeType, str], FrameText | None]"
"""A function that, given code and the usual name of its calls, returns their FrameText; None
for the usual name.
"""


class ProgramTexts:
    """The texts by which the tracer in C names calls and chooses those that are shown.

    Names are torch.profiler's, but those of C functions have no addresses: a method has one name.

    Attributes:
        prefixes: what to take away from the names of files, the longest first.
        own: beginnings of the names of our files, whose calls are not shown, nor what they call.
        own_that_calls: of these, those that call functions of the program, which are shown.
        asked: endings of the names of files about whose code the tracer asks ``code_text``, at
            first sight of it.
        included: files, and folders with a slash at their end, whose functions are shown, as they
            are or without a prefix; all where there are none.
        excluded: those whose functions are not shown.
        c_calls: whether calls of C functions are shown.
        call_sites: whether each call says which line called it.
        max_depth: how many calls may be shown within each other, of those that began while it
            traces; None: any number.

    Args:
        namer: knows calls that are named by their frames.
        asked: the ends of the names of the files whose code it knows.
        calls: which calls are shown.
    """

    def __init__(
        self, namer: FrameNamer, asked: tuple[str, ...], calls: PythonCalls = ALL_CALLS
    ) -> None:
        self._namer, self.asked = namer, asked
        self.included = function_paths(calls.include)
        self.excluded = function_paths(calls.exclude)
        self.c_calls, self.call_sites, self.max_depth = (
            calls.c_calls,
            calls.call_sites,
            calls.max_depth,
        )
        folders = {
            os.path.abspath(folder).rstrip(os.sep) + os.sep
            for folder in sys.path
            if isinstance(folder, str)
        }
        self.prefixes = tuple(sorted(folders, key=len, reverse=True))
        self.own = (OWN,)
        self.own_that_calls = OWN_THAT_CALLS

    def code_text(self, code: CodeType, line: int) -> str | FrameText:
        """The namer of calls that run this code from that line on."""
        prefix = next(filter(code.co_filename.startswith, self.prefixes), "")
        usual = python_call_name(code.co_filename.removeprefix(prefix), line, code.co_name)
        return self._namer(code, usual) or usual


# --- the tool of sys.monitoring

TOOL = "otel-recfn"
TOOLS = (4, 3)
"""The tool ids that have no purpose of their own: those of debuggers, coverage and profilers are
the program's.
"""
C_CALL_EVENTS = ("CALL", "C_RETURN", "C_RAISE")
C_END_EVENTS = C_CALL_EVENTS[1:]
"""The events that come with ``CALL``."""


class Monitoring:
    """The events of all threads of the interpreter, handed to the tracer from ``start`` to
    ``stop``.
    """

    def __init__(self, monitoring: Any) -> None:
        self._sys = monitoring
        self._tool: int | None = None
        self._events: dict[str, int] = {}
        """The numbers of the events that the tracer takes."""

    def start(self, *, c_calls: bool) -> None:
        """Start events, or change whether those of C functions come, if there is a place for the
        tool.
        """
        if not self._has_slot():
            self._tool = next(
                iter([tool for tool in TOOLS if self._sys.get_tool(tool) is None]), None
            )
            if self._tool is None:
                log.warning(
                    "Python calls are not traced: other tools have taken %s of sys.monitoring; free"
                    " one of them",
                    TOOLS,
                )
                return
            self._sys.use_tool_id(self._tool, TOOL)
            callbacks = _native.monitoring_callbacks(self._sys.MISSING)
            self._events = {name: getattr(self._sys.events, name) for name in callbacks}
            for name, callback in callbacks.items():
                self._sys.register_callback(self._tool, self._events[name], callback)
        left_out = C_END_EVENTS if c_calls else C_CALL_EVENTS
        self._set_events(
            sum([number for name, number in self._events.items() if name not in left_out])
        )

    def stop(self) -> None:
        """Stop the events of ``sys.monitoring``, and free our place among its tools."""
        if self._has_slot():
            self._set_events(0)
            for number in self._events.values():
                self._sys.register_callback(self._tool, number, None)
            self._sys.free_tool_id(self._tool)
        self._tool = None

    def _set_events(self, events: int) -> None:
        # CPython looks at the frames of all its threads then, also of those that a child of C code
        # doesn't have, whose stacks are gone: it would crash. Events without a callback do nothing.
        if not forks.has_parent_threads:
            self._sys.set_events(self._tool, events)

    def check(self) -> None:
        """Do nothing: no other tool takes its place unseen."""

    def _has_slot(self) -> bool:
        """Whether its place is still its own: a program may free the places of others, and take
        them.
        """
        return self._tool is not None and bool(self._sys.get_tool(self._tool) == TOOL)


# --- the profile function


class ProfileFunctions:
    """The native profile function in every thread that has none, from ``start`` to ``stop``."""

    def __init__(self) -> None:
        self._logged = False
        """Whether it has logged another profiler since it was set."""

    def start(self, *, c_calls: bool) -> None:
        """Set it, also in threads that start from now on.

        The tracer leaves out C functions itself.
        """
        others = _native.profile_threads()
        before = threading.getprofile()
        if before is None:
            threading.setprofile(_native.profile_this_thread)
        self._log_others(others or not (before is None or before is _native.profile_this_thread))

    def check(self) -> None:
        """Set it again in threads that another profiler has left, and log those that have or had
        one.
        """
        self._log_others(_native.profile_threads())

    def stop(self) -> None:
        """Remove our profile function from every thread that has it."""
        if threading.getprofile() is _native.profile_this_thread:
            threading.setprofile(None)
        _native.unprofile_threads()
        self._logged = False

    def _log_others(self, others: bool) -> None:
        if others and not self._logged:
            self._logged = True
            log.warning(
                "another profiler is or was active and is left alone: calls of its threads are not"
                " traced meanwhile"
            )


# --- the source


class CallSource(Source):
    """A source of ranges of Python calls. One thread at a time uses it.

    In a forked child calls are recorded from when all else of ours is as it should be in a child:
    before, recording one might wait for a lock that another thread of the parent held.

    Args:
        texts: what calls are called, of those that are asked for.
    """

    name = "python_calls"
    announces: EventSource | None = EventSource.PYTHON_CALL

    def __init__(self, texts: Callable[[PythonCalls], ProgramTexts]) -> None:
        self._texts = texts
        self._events: Monitoring | ProfileFunctions
        if sys.version_info >= (3, 12):
            self._events = Monitoring(sys.monitoring)
        else:
            self._events = ProfileFunctions()
        self._selected_calls: PythonCalls | None = None
        """The choice of calls that it traces now."""
        around_forks(Order.CALLS, in_child=_native.go_on_after_fork)

    def enable(self, wanted: Wanted) -> None:
        """Trace what is wanted now, in every thread that can be traced."""
        before, self._selected_calls = self._selected_calls, wanted.calls
        if before == wanted.calls:
            return
        texts = self._texts(wanted.calls)
        _native.trace_calls(texts, is_own_thread)
        self._events.start(c_calls=texts.c_calls)

    def check(self, *, last: bool) -> None:
        """Look for threads that another profiler has or had.

        At the last drain, threads which have been blocked since tracing began get their calls.
        """
        if self._selected_calls is None:
            return
        self._events.check()
        if last:
            threads = [
                thread for thread in threading.enumerate() if not isinstance(thread, OwnThread)
            ]
            _native.record_blocked_threads(
                {thread.ident: thread.native_id or 0 for thread in threads}
            )

    def disable(self) -> None:
        """Leave every thread as it was, and end the calls that are open."""
        if self._selected_calls is None:
            return
        self._selected_calls = None
        _native.untrace_calls()
        self._events.stop()
