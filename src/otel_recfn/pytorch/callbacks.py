"""Callbacks in Python on PyTorch's own operators: the runtime's mirror.

Each callback becomes a callback of PyTorch's, which decides about scopes, sampling and switches in C++. The library that does
it is built and loaded when there is a callback and torch is imported, whichever comes last; without both nothing is paid.

What PyTorch can't hand on to us, because the library came later: callbacks of *other* threads than the one that imports torch,
added there before. They reach operators from the next change of that thread's callbacks on.
"""

from __future__ import annotations

import atexit
import importlib.machinery
import importlib.util
import logging
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, cast

from otel_recfn.model.errors import RecfnError
from otel_recfn.model.scope import RecordScope, scopes_mask
from otel_recfn.pytorch import observer_build
from otel_recfn.pytorch.late_import import when_torch_is_imported
from otel_recfn.runtime import callback_lists, thread_locals
from otel_recfn.runtime.callback_entries import CallbackEntry, Entries
from otel_recfn.runtime.range_properties import InputsError, OperatorName
from otel_recfn.support.fork_safe_lock import ForkSafeLock
from otel_recfn.support.forks import Order, around_forks
from otel_recfn.support.interrupts import raised_by_signal_handler

log = logging.getLogger("otel_recfn")

MODULE = "otel_recfn._torch_callbacks"
SLOTS = 64
"""How many callbacks can be on PyTorch's operators at once."""


class RangeOver(RecfnError):
    """A RecordFunction of PyTorch's was read after the callback that got it had returned."""


class Library(Protocol):
    """native/callbacks/torch_callbacks.cpp. Callbacks go by the runtime's handles; unknown ones are ignored."""

    def attach(
        self,
        scopes: tuple[RecordScope, ...],
        operator_name: Callable[[str, str], Any],
        schema: Callable[[str], Any],
        inputs_error: type[Exception],
        over_error: type[Exception],
        reporter: Callable[[int, BaseException], bool],
        /,
    ) -> None:
        """Once, before anything else. The reporter is given what a callback raised; True: it goes on to the program."""

    def add(self, handle: int, is_global: bool, /, *callback: Any) -> bool:
        """Take a callback; False when there are SLOTS of them already."""

    def remove(self, handle: int, /) -> None:
        """Give its place to others. Its open ranges still get their ends."""

    def fail(self, handle: int, /) -> None:
        """Call it no more; it keeps its place."""

    def switch_global(self, handle: int, enabled: bool, /) -> None:
        """Disable or reenable a global callback."""

    def set_thread(self, handles: tuple[int, ...], enabled: bool, /) -> None:
        """The calling thread's own callbacks, all that were added but not as global; False: it runs no callbacks at all."""

    def seed(self, seed: int, /) -> None:
        """Of the calling thread's sampling in PyTorch."""

    def is_inside(self) -> bool:
        """Whether the calling thread runs a callback."""

    def set_inside(self, inside: bool, /) -> bool:
        """Say so; returns what was so before."""

    def close(self) -> None:
        """Call nothing any more, for good: the interpreter goes down."""

    def forked(self) -> None:
        """This is the child."""


_library: Library | None = None


def load() -> Library:
    """The library, built if needed and loaded once per process; torch must be imported.

    Raises:
        ObserverUnavailable: it can't be built or loaded here.
        CacheUnsafe: the cache of built libraries can't be trusted.
    """
    global _library
    if _library is None:
        try:
            library = _open(observer_build.build(observer_build.TORCH_CALLBACKS))
        except ImportError as error:  # torch was rebuilt in place under the same version, or the file is damaged
            log.info("the cached torch_callbacks cannot be loaded (%s); building it again", error)
            library = _open_again()
        library.attach(tuple(RecordScope), OperatorName, _schema, InputsError, RangeOver, _goes_on_to_the_program)
        atexit.register(library.close)
        around_forks(Order.THREAD_STATE, in_child=library.forked)
        thread_locals.share_callback_flag(library)
        _library = library
    return _library


def _open_again() -> Library:
    try:
        return _open(observer_build.build(observer_build.TORCH_CALLBACKS, again=True))
    except ImportError as error:
        message = f"the built library cannot be loaded: {error}; run `otel-recfn doctor`"
        raise observer_build.ObserverUnavailable(message) from error


def _open(path: Path) -> Library:
    loader = importlib.machinery.ExtensionFileLoader(MODULE, str(path))
    specification = importlib.util.spec_from_file_location(MODULE, path, loader=loader)
    assert specification is not None
    module = importlib.util.module_from_spec(specification)
    loader.exec_module(module)
    return cast(Library, module)


def _schema(text: str) -> Any:
    """PyTorch's FunctionSchema; where this torch has no parser in Python, the text."""
    parse = getattr(sys.modules["torch"]._C, "parse_schema", None)
    return parse(text) if parse is not None else text


def _goes_on_to_the_program(handle: int, error: BaseException) -> bool:
    """A callback raised ``error``. Its own failure is reported; what a signal handler raised in it is the program's."""
    if not isinstance(error, (Exception, SystemExit)) or raised_by_signal_handler(error):
        return True
    callback_lists.failed(handle, error)
    return False


class TorchCallbacks:
    """The mirror (see runtime/mirror.py), which calls it under its lock, one change at a time."""

    def __init__(self) -> None:
        self._lock, self._loading = ForkSafeLock(), ForkSafeLock()
        self._library: Library | None = None
        self._asked_for = False
        self._warned = False
        self._global: dict[int, CallbackEntry] = {}
        self._local = _ThreadLists()

    # --- what the runtime says

    def added(self, entry: CallbackEntry) -> None:
        """See Mirror."""
        with self._lock.held:
            self._global[entry.handle] = entry
            if self._library is not None:
                self._remove_unused()
                self._add(entry, is_global=True)

    def removed(self, handle: int) -> None:
        """See Mirror."""
        with self._lock.held:
            was_global = self._global.pop(handle, None) is not None
            if self._library is not None:
                (self._library.remove if was_global else self._library.fail)(handle)

    def switched(self, handle: int, enabled: bool) -> None:
        """See Mirror."""
        with self._lock.held:
            self._global[handle] = self._global[handle]._replace(enabled=enabled)
            if self._library is not None:
                self._library.switch_global(handle, enabled)

    def thread_changed(self, entries: Entries, enabled: bool) -> None:
        """See Mirror."""
        with self._lock.held:
            self._local.set(entries, enabled)
            if self._library is not None:
                self._install_thread()

    def seeded(self, seed: int) -> None:
        """See Mirror."""
        if self._library is not None:
            self._library.seed(seed)

    # --- the library

    def settle(self) -> None:
        """See Mirror. A thread that comes while another one is loading the library waits, and takes its own callbacks there."""
        if self._library is not None or not self._in_use():
            return
        with self._loading.held:
            ask, self._asked_for = not self._asked_for, True
            if ask:
                when_torch_is_imported(self._load)
        with self._lock.held:
            if self._library is not None:
                self._install_thread()

    def _in_use(self) -> bool:
        with self._lock.held:
            return bool(self._global) or self._local.in_use()

    def _load(self) -> None:
        with self._loading.held:
            if not self._in_use():  # all were removed before torch came
                self._asked_for = False
                return
            try:
                library = load()
            except (RecfnError, OSError) as error:
                log.warning(
                    "Python callbacks do not see PyTorch's operators, only Python ranges: %s; then start the program again",
                    error,
                )
                return
        with self._lock.held:
            self._library = library
            for entry in self._global.values():
                self._add(entry, is_global=True)
            self._install_thread()

    def _add(self, entry: CallbackEntry, *, is_global: bool) -> None:
        assert self._library is not None
        callback = entry.callback
        if self._library.add(
            entry.handle,
            is_global,
            callback.start(),
            callback.end(),
            callback.should_run(),
            scopes_mask(callback.scopes()),
            1.0 if callback.should_run() is not None else callback.sampling_prob(),
            callback.needs_inputs(),
            callback.needs_outputs(),
            callback.needs_ids(),
        ):
            if is_global and not entry.enabled:
                self._library.switch_global(entry.handle, False)
        elif not self._warned:
            self._warned = True
            log.warning(
                "more than %d callbacks: those added last see only Python ranges, none of PyTorch's operators; "
                "observe with fewer callbacks",
                SLOTS,
            )

    def _install_thread(self) -> None:
        """Bring PyTorch's list for the calling thread to what it is here."""
        assert self._library is not None
        entries, enabled = self._local.of_this_thread()
        handles = tuple(entry.handle for entry in entries if entry.enabled)
        self._library.set_thread(handles, enabled)
        self._remove_unused()
        new = self._local.newly_used()
        for entry in new:
            self._add(entry, is_global=False)
        if new:
            self._library.set_thread(handles, enabled)

    def _remove_unused(self) -> None:
        """Callbacks that no thread has any more make place for others."""
        assert self._library is not None
        for handle in self._local.no_longer_used():
            self._library.remove(handle)


class _ThreadLists:
    """Each thread's own callbacks, and in how many threads each callback is. Under the mirror's lock."""

    def __init__(self) -> None:
        self._thread = threading.local()
        self._threads: Counter[int] = Counter()
        self._known: dict[int, CallbackEntry] = {}
        self._placed: set[int] = set()
        self._gone: deque[tuple[int, ...]] = deque()

    def set(self, entries: Entries, enabled: bool) -> None:
        self._threads.update(entry.handle for entry in entries)
        self._known.update((entry.handle, entry) for entry in entries)
        self._thread.list = _ThreadList(entries, enabled, self._gone)  # the one before puts itself among the gone
        self._forget_gone()

    def of_this_thread(self) -> tuple[Entries, bool]:
        found: _ThreadList | None = getattr(self._thread, "list", None)
        return (found.entries, found.enabled) if found is not None else ((), True)

    def in_use(self) -> bool:
        self._forget_gone()
        return bool(self._known)

    def newly_used(self) -> list[CallbackEntry]:
        """Callbacks that are in a thread now, told once."""
        new = [entry for handle, entry in self._known.items() if handle not in self._placed]
        self._placed.update(entry.handle for entry in new)
        return new

    def no_longer_used(self) -> list[int]:
        """Those of them that are in no thread any more."""
        self._forget_gone()
        old = [handle for handle in self._placed if handle not in self._known]
        self._placed.difference_update(old)
        return old

    def _forget_gone(self) -> None:
        while self._gone:
            for handle in self._gone.popleft():
                self._threads[handle] -= 1
                if self._threads[handle] == 0:
                    del self._threads[handle], self._known[handle]


class _ThreadList:
    """Goes with its thread: then its callbacks are noted as gone, without a lock, since that may happen anywhere."""

    __slots__ = ("_gone", "enabled", "entries")

    def __init__(self, entries: Entries, enabled: bool, gone: deque[tuple[int, ...]]) -> None:
        self.entries, self.enabled, self._gone = entries, enabled, gone

    def __del__(self) -> None:
        if self.entries:
            self._gone.append(tuple(entry.handle for entry in self.entries))
