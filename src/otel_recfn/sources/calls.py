"""The source of Python calls, which traces every thread, also those that run already.

By ``sys.monitoring`` where CPython has it (from 3.12 on) and a place for one more tool is free, else by the profile function of
each thread. For each thread there is the stack of calls that were seen to begin:

    call    name of the code object ─► `begin_call` ─► push
    return                             Recorder.end        ◄─ pop

An exit ends the innermost call, also where a greenlet has switched stacks meanwhile, so calls always nest. An exit of a frame
whose call isn't on the stack ends none: the call began long before, or another tool of ``sys.monitoring`` raised at its begin
or return, which CPython reports as one more end.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeAlias

from otel_recfn import _native
from otel_recfn.model.events import EventSource
from otel_recfn.model.python_calls import ALL_CALLS, PythonCalls, places_of
from otel_recfn.sources.protocol import Source, Wanted
from otel_recfn.support.forks import Order, OwnThread, around_forks, is_own_thread
from otel_recfn.support.texts import python_call_name

log = logging.getLogger("otel_recfn")


# --- the names of calls

OWN = str(Path(__file__).parents[1]) + os.sep
OWN_THAT_CALLS = OWN + os.path.join("recording", "ranges.py"), OWN + "callbacks" + os.sep
"""The modules of ours that call functions of the program, which are to be seen."""

NameOfFrame: TypeAlias = "Callable[[FrameType], str | None]"
"""A function that names a call by its frame; None: the call is not shown."""
FrameNamer: TypeAlias = "Callable[[CodeType, str], NameOfFrame | None]"
"""A function that, given code and the usual name of its calls, returns their NameOfFrame; None for the usual name."""


class ProgramTexts:
    """The texts by which the tracer in C names calls and chooses those that are shown.

    Names are torch.profiler's, but those of C functions have no addresses: a method has one name.

    Attributes:
        prefixes: what to take away from the names of files, the longest first.
        own: beginnings of the names of our files, whose calls are not shown, nor what they call.
        own_that_calls: of these, those that call functions of the program, which are shown.
        asked: endings of the names of files about whose code the tracer asks ``of_code``, at first sight of it.
        included: files, and folders with a slash at their end, whose functions are shown, as they are or without a prefix; all
            where there are none.
        excluded: those whose functions are not shown.
        c_calls: whether calls of C functions are shown.
        call_sites: whether each call says which line called it.
        max_depth: how many calls may be shown within each other, of those that began while it traces; None: any number.

    Args:
        namer: knows calls that are named by their frames.
        asked: the ends of the names of the files whose code it knows.
        calls: which calls are shown.
    """

    def __init__(self, namer: FrameNamer, asked: tuple[str, ...], calls: PythonCalls = ALL_CALLS) -> None:
        self._namer, self.asked = namer, asked
        self.included, self.excluded = places_of(calls.include), places_of(calls.exclude)
        self.c_calls, self.call_sites, self.max_depth = calls.c_calls, calls.call_sites, calls.max_depth
        folders = {os.path.abspath(folder).rstrip(os.sep) + os.sep for folder in sys.path if isinstance(folder, str)}
        self.prefixes = tuple(sorted(folders, key=len, reverse=True))
        self.own, self.own_that_calls = (OWN,), OWN_THAT_CALLS

    def of_code(self, code: CodeType, line: int) -> str | NameOfFrame:
        """The namer of calls that run this code from that line on."""
        prefix = next(filter(code.co_filename.startswith, self.prefixes), "")
        usual = python_call_name(code.co_filename.removeprefix(prefix), line, code.co_name)
        return self._namer(code, usual) or usual


# --- the tool of sys.monitoring

TOOL = "otel-recfn"
TOOLS = (4, 3)
"""The tool ids that have no purpose of their own: those of debuggers, coverage and profilers are the program's."""
OF_C = ("CALL", "C_RETURN", "C_RAISE")
WITH_CALL = OF_C[1:]
"""The events that come with ``CALL``."""


class Monitoring:
    """The events of all threads of the interpreter, handed to the tracer from ``start`` to ``stop``."""

    def __init__(self) -> None:
        self._sys: Any = getattr(sys, "monitoring", None)
        self._tool: int | None = None
        self._events: dict[str, int] = {}
        """The numbers of the events that the tracer takes."""

    def start(self, *, c_calls: bool) -> bool:
        """Start events, if there is a place for the tool; returns whether there is."""
        free = [] if self._sys is None else [tool for tool in TOOLS if self._sys.get_tool(tool) is None]
        self._tool = next(iter(free), None)
        if self._tool is None:
            return False
        self._sys.use_tool_id(self._tool, TOOL)
        callbacks = _native.monitoring_callbacks()
        self._events = {name: getattr(self._sys.events, name) for name in callbacks}
        for name, callback in callbacks.items():
            self._sys.register_callback(self._tool, self._events[name], callback)
        self.change(c_calls=c_calls)
        return True

    def change(self, *, c_calls: bool) -> None:
        """Change whether events of C functions come, too."""
        if self._has_place():
            left_out = WITH_CALL if c_calls else OF_C
            self._sys.set_events(self._tool, sum([number for name, number in self._events.items() if name not in left_out]))

    def stop(self) -> None:
        """Stop events."""
        if self._has_place():
            self._sys.set_events(self._tool, 0)
            for number in self._events.values():
                self._sys.register_callback(self._tool, number, None)
            self._sys.free_tool_id(self._tool)
        self._tool = None

    def _has_place(self) -> bool:
        """Whether its place is still its own: a program may free the places of others, and take them."""
        return self._tool is not None and bool(self._sys.get_tool(self._tool) == TOOL)


# --- the source


class CallSource(Source):
    """A source of ranges of Python calls. One thread at a time uses it.

    In a forked child calls are recorded from when all else of ours is as it should be in a child: before, recording one might
    wait for a lock that another thread of the parent held.

    Args:
        texts: what calls are called, of those that are asked for.
    """

    name = "python_calls"
    announces: EventSource | None = EventSource.PYTHON_CALL

    def __init__(self, texts: Callable[[PythonCalls], ProgramTexts]) -> None:
        self._texts = texts
        self._monitoring = Monitoring()
        self._shown: PythonCalls | None = None
        """The choice of calls that it traces now."""
        self._profiles = False
        """Whether it traces by the profile function."""
        self._logged = False
        """Whether it has logged another profiler, while it traces."""
        around_forks(Order.CALLS, in_child=_native.go_on_after_fork)

    def enable(self, wanted: Wanted) -> None:
        """Trace what is wanted now, in every thread that can be traced."""
        before, self._shown = self._shown, wanted.calls
        if before is None:
            self._start(self._texts(wanted.calls))
        elif before != wanted.calls:  # it holds for calls that begin from now on
            texts = self._texts(wanted.calls)
            _native.show_calls(texts)
            self._monitoring.change(c_calls=texts.c_calls)

    def _start(self, texts: ProgramTexts) -> None:
        _native.trace_calls(texts, is_own_thread)
        self._logged = False
        self._profiles = not self._monitoring.start(c_calls=texts.c_calls)
        if not self._profiles:
            return
        left_alone = _native.profile_calls()
        if not _native.profiles_other_threads():
            log.warning("this CPython has no _PyEval_SetProfile: threads that run already are not traced, later ones are")
        has_profiler = threading.getprofile() is not None
        if not has_profiler:
            threading.setprofile(_native.profile_this_thread)
        self._log_other_profiler(has_profiler or left_alone > 0)

    def look(self, *, last: bool) -> None:
        """Trace threads again that another profiler has left, and log those that have or had one.

        At the last drain, threads which have been blocked since tracing began get their calls.
        """
        if self._shown is None:
            return
        sees_all_threads = not self._profiles or _native.profiles_other_threads()
        if self._profiles and sees_all_threads:
            self._log_other_profiler(_native.profile_calls() > 0)
        if last and sees_all_threads:
            threads = [thread for thread in threading.enumerate() if not isinstance(thread, OwnThread)]
            _native.stand_in_for_blocked_threads({thread.ident: thread.native_id or 0 for thread in threads})

    def _log_other_profiler(self, left_alone: bool) -> None:
        if left_alone and not self._logged:
            self._logged = True
            log.warning("another profiler is or was active and is left alone: calls of its threads are not traced meanwhile")

    def disable(self) -> None:
        """Leave every thread as it was, and end the calls that are open."""
        if self._shown is None:
            return
        self._shown, self._profiles = None, False
        if threading.getprofile() is _native.profile_this_thread:
            threading.setprofile(None)
        _native.untrace_calls()
        self._monitoring.stop()
