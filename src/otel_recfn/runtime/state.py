"""The state that a thread passes to the work it launches: captured in one thread and installed in another.

(source: ``at::RecordFunctionTLS``, ``at::ThreadLocalState``)
"""

from __future__ import annotations

from typing import NamedTuple

from otel_recfn.runtime import callback_lists, thread_locals
from otel_recfn.runtime.callback_entries import Entries
from otel_recfn.runtime.debug_info import current_debug_info, set_current_debug_info


class RecordFunctionTLS(NamedTuple):
    """A thread's callbacks, in the order of their handles, and whether RecordFunction is enabled in it."""

    sorted_tls_callbacks: Entries = ()
    tls_record_function_enabled: bool = True


def get_record_function_tls() -> RecordFunctionTLS:
    """The calling thread's."""
    state = thread_locals.current()
    return RecordFunctionTLS(callback_lists.thread_entries(state), callback_lists.is_enabled())


def set_record_function_tls(tls: RecordFunctionTLS) -> None:
    """Make it the calling thread's. Callbacks keep their handles."""
    entries = tuple(entry for entry in tls.sorted_tls_callbacks if not callback_lists.has_failed(entry.handle))
    callback_lists.install(thread_locals.current(), entries)
    callback_lists.enable(tls.tls_record_function_enabled)


def set_record_function_seed_for_testing(seed: int) -> None:
    """Make the calling thread's sampling repeatable."""
    callback_lists.seed(thread_locals.current(), seed)


class ThreadLocalState:
    """A snapshot of the calling thread: its callbacks, its flag, its debug info, and what it traces into.

    What the thread changes later isn't in it.
    """

    __slots__ = ("_debug_info", "_tls", "_tracer")

    def __init__(self) -> None:
        self._tls, self._debug_info = get_record_function_tls(), current_debug_info()
        self._tracer = thread_locals.current().tracer

    def set_thread_local_state(self) -> None:
        """Make the calling thread's state this one (source: ``ThreadLocalState::setThreadLocalState``)."""
        set_record_function_tls(self._tls)
        set_current_debug_info(self._debug_info)
        thread_locals.current().tracer = self._tracer


class ThreadLocalStateGuard:
    """``with ThreadLocalStateGuard(state):`` the thread has that state; leaving gives it back its own. Guards nest."""

    __slots__ = ("_before", "_state")

    def __init__(self, state: ThreadLocalState) -> None:
        self._state = state
        self._before: list[ThreadLocalState] = []

    def __enter__(self) -> ThreadLocalStateGuard:
        self._before.append(ThreadLocalState())
        self._state.set_thread_local_state()
        return self

    def __exit__(self, *_error: object) -> None:
        self._before.pop().set_thread_local_state()
