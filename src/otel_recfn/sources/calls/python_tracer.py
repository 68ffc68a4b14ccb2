"""Traces calls by ``sys.setprofile``, for the Python twin: the thread that starts it, and threads that Python starts later.

Python can't ask what profile function another thread has, and one that is there must stay: so threads that run already are not
traced. A thread notices at its next call or return that tracing is over. One that recurses to the limit is traced no more,
because there is no room for a profile function in Python.
"""

from __future__ import annotations

import logging
import sys
import threading
from types import FrameType
from typing import Any

from otel_recfn.recording.recorder import Recorder
from otel_recfn.sources.calls.protocol import MAX_START_FRAMES, CallText, CallTexts, Hides
from otel_recfn.support.interrupts import raised_by_signal_handler
from otel_recfn.support.own_thread import is_own_thread
from otel_recfn.support.weak_identity import WeakIdentityMap

log = logging.getLogger("otel_recfn")
NOTHING_HIDDEN = -1


class ThreadCalls:
    """The calls that are open in a thread."""

    def __init__(self) -> None:
        self.stack: list[tuple[int, int]] = []
        """Event ids, 0 where one isn't recorded, ``~id`` of a C function's; with the ``id`` of a Python call's frame, or 0."""
        self.hidden_from = NOTHING_HIDDEN
        """How many calls are around the one below which nothing is shown."""
        self.shown = 0
        """How many of those that began while it traces are ranges."""


class PythonTracer:
    """A CallTracer.

    Args:
        recorder: what begins and ends go to.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._texts: CallTexts | None = None
        self._left_alone = self._cut_short = 0
        self._start_empty()

    def _start_empty(self) -> None:
        self._local = threading.local()
        self._threads: WeakIdentityMap[None] = WeakIdentityMap()
        self._known: WeakIdentityMap[dict[int, CallText]] = WeakIdentityMap()
        """Of each code object, what its calls are called, by line."""

    def start(self, texts: CallTexts) -> None:
        """See CallTracer.start."""
        self._start_empty()
        self._texts = texts
        if threading.getprofile() is None:
            threading.setprofile(self._on_event)
        else:
            self._left_alone += 1
        if sys.getprofile() is None:
            sys.setprofile(self._on_event)
        else:
            self._left_alone += 1

    def show(self, texts: CallTexts) -> None:
        """See CallTracer.show."""
        self._known = WeakIdentityMap()
        self._texts = texts

    def look(self, *, last: bool) -> None:
        """See CallTracer.look: of the calling thread, because Python can't ask what profile function another has."""
        calls: ThreadCalls | None = getattr(self._local, "calls", None)
        if calls is None or self._texts is None or sys.getprofile() == self._on_event:
            return
        self._left_alone += 1
        self._forget(calls)
        if sys.getprofile() is None:
            sys.setprofile(self._on_event)

    def stop(self) -> None:
        """See CallTracer.stop."""
        self.look(last=True)
        self._texts = None
        if threading.getprofile() == self._on_event:
            threading.setprofile(None)
        if sys.getprofile() == self._on_event:
            sys.setprofile(None)
        for calls in self._threads.living():
            self._end_all(calls)

    def threads_left_alone(self) -> int:
        """See CallTracer.threads_left_alone."""
        return self._left_alone

    def threads_cut_short(self) -> int:
        """See CallTracer.threads_cut_short."""
        return self._cut_short

    def _on_event(self, frame: FrameType, event: str, argument: Any) -> None:
        """The profile function. What a signal handler raised in it goes to the program, and the thread is traced no more."""
        try:
            if self._texts is None:
                sys.setprofile(None)
            else:
                self._take(self._texts, frame, event, argument)
        except RecursionError:
            self._cut_short += 1
            self._leave_thread()
        except BaseException as error:
            self._leave_thread()
            if raised_by_signal_handler(error) or not isinstance(error, Exception):
                raise
            log.exception("the tracer of Python calls failed; this thread is traced no more")

    def _take(self, texts: CallTexts, frame: FrameType, event: str, argument: Any) -> None:
        calls: ThreadCalls | None = getattr(self._local, "calls", None)
        if calls is None:
            if not self._recorder.recording:
                return
            if is_own_thread():
                sys.setprofile(None)
                return
            calls = self._meet_thread(texts, frame.f_back if event == "call" else frame)
        if event == "call":
            self._enter(texts, calls, frame)
        elif event == "return":
            self._leave_python(calls, id(frame))
        elif event == "c_call":
            if texts.c_calls:
                self._enter_c(texts, calls, frame, argument)
        else:
            self._leave_c(calls)

    def _meet_thread(self, texts: CallTexts, frame: FrameType | None) -> ThreadCalls:
        """Begin what was on the thread's stack before it was traced."""
        calls = self._local.calls = ThreadCalls()
        self._threads.set(calls, None)
        stack: list[FrameType] = []
        while frame is not None and len(stack) < MAX_START_FRAMES:
            stack.append(frame)
            frame = frame.f_back
        for outer in reversed(stack):
            self._enter(texts, calls, outer)
            calls.shown = 0  # depth is counted from where tracing began
        return calls

    def _enter(self, texts: CallTexts, calls: ThreadCalls, frame: FrameType) -> None:
        hidden = calls.hidden_from != NOTHING_HIDDEN or _is_deep_enough(texts, calls)
        text: Any = Hides.ITSELF if hidden else self._text(texts, frame)
        if text is Hides.ALL_BELOW:
            calls.hidden_from = len(calls.stack)
        elif not isinstance(text, (str, Hides)):
            text = text(frame)
        self._push(calls, self._recorder.begin_call(text) if isinstance(text, str) else 0, id(frame))

    def _enter_c(self, texts: CallTexts, calls: ThreadCalls, frame: FrameType, function: object) -> None:
        hidden = calls.hidden_from != NOTHING_HIDDEN or _is_deep_enough(texts, calls)
        shown = not hidden and not isinstance(self._text(texts, frame), Hides)
        self._push(calls, ~self._recorder.begin_call(texts.of_function(function)) if shown else ~0, 0)

    def _push(self, calls: ThreadCalls, entry: int, frame: int) -> None:
        calls.stack.append((entry, frame))
        calls.shown += entry not in (0, ~0)
        if self._texts is None:  # another thread has stopped tracing meanwhile, and may not have seen this call
            self._end_all(calls)

    def _leave_python(self, calls: ThreadCalls, frame: int) -> None:
        """The innermost Python call is over, and with it what C functions it called of which no exit was told.

        Nothing is where the frame's call isn't open: CPython tells of the end of one whose begin another tool of
        ``sys.monitoring`` refused, too. Greenlets end calls in another order: the frame of the one that ends here stays open.
        """
        left = next((at for at in reversed(range(len(calls.stack))) if calls.stack[at][1] == frame), None)
        if left is None:
            return
        while calls.stack[-1][0] < 0:
            self._pop(calls)
        calls.stack[left] = calls.stack[left][0], calls.stack[-1][1]
        self._pop(calls)

    def _leave_c(self, calls: ThreadCalls) -> None:
        if calls.stack and calls.stack[-1][0] < 0:
            self._pop(calls)

    def _pop(self, calls: ThreadCalls) -> int:
        entry, _ = calls.stack.pop()
        self._recorder.end(entry if entry >= 0 else ~entry)
        calls.shown -= entry not in (0, ~0) and calls.shown > 0
        if len(calls.stack) <= calls.hidden_from:
            calls.hidden_from = NOTHING_HIDDEN
        return entry

    def _end_all(self, calls: ThreadCalls) -> None:
        while calls.stack:
            self._pop(calls)

    def _text(self, texts: CallTexts, frame: FrameType) -> CallText:
        code, line = frame.f_code, frame.f_lineno
        by_line = self._known.get(code)
        if by_line is None:
            by_line = {}
            self._known.set(code, by_line)
        text = by_line.get(line)
        if text is None:
            text = by_line[line] = texts.of_code(code, line)
        return text

    def _leave_thread(self) -> None:
        if sys.getprofile() == self._on_event:
            sys.setprofile(None)
        calls = getattr(self._local, "calls", None)
        if calls is not None:
            self._forget(calls)

    def _forget(self, calls: ThreadCalls) -> None:
        del self._local.calls
        self._end_all(calls)


def _is_deep_enough(texts: CallTexts, calls: ThreadCalls) -> bool:
    return texts.max_depth is not None and calls.shown >= texts.max_depth
