"""Callbacks in Python on PyTorch's own operators: the runtime's mirror.

Each callback becomes a callback of PyTorch's, which decides about scopes, sampling and switches in C++. The library that does
it is built and loaded once there is a callback and torch is imported; before that nothing is paid.

One thing is lost because the library comes late: callbacks that another thread than the one that imports torch had added for
itself before. They reach operators from that thread's next change of its callbacks on.
"""

from __future__ import annotations

import logging
import sys

from otel_recfn.model.errors import RecfnError
from otel_recfn.model.scope import scopes_mask
from otel_recfn.pytorch import details
from otel_recfn.pytorch.callbacks_library import SLOTS, Library, load
from otel_recfn.pytorch.late_import import when_torch_is_imported
from otel_recfn.pytorch.thread_lists import ThreadLists
from otel_recfn.pytorch.thread_state import carry_with_torch
from otel_recfn.runtime.callback_entries import CallbackEntry, Entries
from otel_recfn.runtime.guards import is_record_function_enabled
from otel_recfn.support.fork_safe_lock import ForkSafeLock

log = logging.getLogger("otel_recfn")


class TorchCallbacks:
    """The mirror (see runtime/mirror.py), which calls it under its lock, one change at a time."""

    def __init__(self) -> None:
        self._lock, self._loading = ForkSafeLock(), ForkSafeLock()
        self._library: Library | None = None
        self._asked_for = False
        self._warned = False
        self._waits_to_tell = False
        self._global: dict[int, CallbackEntry] = {}
        self._local = ThreadLists()

    # --- what the runtime says

    def added(self, entry: CallbackEntry) -> None:
        """See Mirror."""
        with self._lock:
            self._global[entry.handle] = entry
            if self._library is not None:
                self._remove_unused()
                self._add(entry, is_global=True)

    def removed(self, handle: int) -> None:
        """See Mirror."""
        with self._lock:
            was_global = self._global.pop(handle, None) is not None
            if self._library is not None:
                (self._library.remove if was_global else self._library.fail)(handle)

    def switched(self, handle: int, enabled: bool) -> None:
        """See Mirror."""
        with self._lock:
            self._global[handle] = self._global[handle]._replace(enabled=enabled)
            if self._library is not None:
                self._library.switch_global(handle, enabled)

    def thread_changed(self, entries: Entries) -> None:
        """See Mirror."""
        with self._lock:
            self._local.set(entries)
            if self._library is not None:
                self._install_thread()

    def switched_thread(self, enabled: bool) -> None:
        """See Mirror. Where torch isn't there yet, the thread that imports it tells it."""
        if "torch" in sys.modules:
            self._tell_switch(enabled)
        elif not self._waits_to_tell:
            self._waits_to_tell = True
            when_torch_is_imported(lambda: self._tell_switch(is_record_function_enabled()))

    def carries(self) -> None:
        """See Mirror."""
        when_torch_is_imported(carry_with_torch)

    def _tell_switch(self, enabled: bool) -> None:
        switch = details.find("thread_switch")
        if switch is not None:
            switch(enabled)

    def seeded(self, seed: int) -> None:
        """See Mirror."""
        if self._library is not None:
            self._library.seed(seed)

    # --- the library

    def finish_adding(self) -> None:
        """See Mirror. While another thread loads the library, this one waits, and then installs its own callbacks."""
        if self._library is not None or not self._in_use():
            return
        with self._loading:
            ask, self._asked_for = not self._asked_for, True
            if ask:
                when_torch_is_imported(self._load)
        with self._lock:
            if self._library is not None:
                self._install_thread()

    def _in_use(self) -> bool:
        with self._lock:
            return bool(self._global) or self._local.in_use()

    def _load(self) -> None:
        with self._loading:
            library = self._load_if_needed()
        if library is not None:
            self._go_on_with(library)

    def _load_if_needed(self) -> Library | None:
        if not self._in_use():  # all callbacks were removed before torch was imported
            self._asked_for = False
            return None
        try:
            return load()
        except (RecfnError, OSError) as error:
            log.warning(
                "Python callbacks do not see PyTorch's operators, only Python ranges: %s; then start the program again",
                error,
            )
            return None

    def _go_on_with(self, library: Library) -> None:
        with self._lock:
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
        """Make PyTorch's list of the calling thread's callbacks the same as ours."""
        assert self._library is not None
        handles = tuple(entry.handle for entry in self._local.of_this_thread() if entry.enabled)
        self._library.set_thread(handles)
        self._remove_unused()
        new = self._local.newly_used()
        for entry in new:
            self._add(entry, is_global=False)
        if new:
            self._library.set_thread(handles)

    def _remove_unused(self) -> None:
        """Free the slots of callbacks that no thread has any more."""
        assert self._library is not None
        for handle in self._local.no_longer_used():
            self._library.remove(handle)
