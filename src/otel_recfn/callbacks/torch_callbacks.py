"""Our callbacks as callbacks of PyTorch's, so that PyTorch's own operators call them.

Each callback becomes a callback of PyTorch's, which decides about scopes, sampling and switches in
C++. The library that does it (``native/callbacks/torch_callbacks.cpp``) is built and loaded once
there is a callback and torch is imported; before that nothing is paid.

One thing is lost because the library comes late: callbacks that another thread than the one that
imports torch had added for itself before. They reach operators from that thread's next change of
its callbacks on.
"""

from __future__ import annotations

import atexit
import importlib.machinery
import importlib.util
import weakref
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from otel_recfn import _native
from otel_recfn.callbacks import thread_locals
from otel_recfn.callbacks.callback import CallbackEntry, Entries
from otel_recfn.errors import InputsError, RangeOver, RecfnError
from otel_recfn.model.events import RecordScope, scopes_mask
from otel_recfn.pytorch import details
from otel_recfn.pytorch.late_import import call_at_torch_import
from otel_recfn.support.forks import ForkSafeLock, Order, around_forks
from otel_recfn.support.logs import log

MODULE = "otel_recfn._torch_callbacks"


class OperatorName(NamedTuple):
    """The two parts of an operator's name, as its schema has them."""

    name: str
    overload_name: str


Library: TypeAlias = Any
"""The extension module. It names callbacks by our handles, and ignores unknown ones."""
Report: TypeAlias = Callable[[int, BaseException, str], bool]
"""A function that is given a callback's handle, its error and the range's name; true if the
error goes on to the program.
"""

_library: Library | None = None


def load(report: Report) -> Library:
    """The library, built if needed and loaded once per process; torch must be imported.

    The first ``report`` gets what callbacks raise. Where it can't be loaded, a RecfnError says why.
    """
    global _library
    if _library is None:
        # Imported late, as programs without callbacks need not build anything.
        from otel_recfn.pytorch import observer_build

        library = observer_build.load(observer_build.TORCH_CALLBACKS, _open)
        details.log_losses(library.features(), details.CALLBACKS)
        library.attach(
            scopes=tuple(RecordScope),
            operator_name=OperatorName,
            schema=_schema,
            inputs_error=InputsError,
            over_error=RangeOver,
            thread_id=_native.thread_id_of,
            report=report,
        )
        atexit.register(library.close)
        around_forks(Order.THREAD_STATE, in_child=library.forked)
        thread_locals.share_torchs_flags(library)
        _library = library
    return _library


def _open(path: Path) -> Library:
    loader = importlib.machinery.ExtensionFileLoader(MODULE, str(path))
    specification = importlib.util.spec_from_file_location(MODULE, path, loader=loader)
    assert specification is not None
    module = importlib.util.module_from_spec(specification)
    loader.exec_module(module)
    return module


def _schema(text: str) -> Any:
    """PyTorch's FunctionSchema; the text, if this torch has no parser in Python."""
    parse = details.find("parse_schema")
    return parse(text) if parse is not None else text


class TorchCallbacks:
    """A copy of our lists of callbacks in PyTorch, updated after each change of ours.

    It never raises.

    Whoever changes our lists, and calls ``repeat_...`` or ``fail``, holds ``lock``.
    """

    def __init__(
        self,
        lock: ForkSafeLock,
        global_entries: Callable[[], Entries],
        own_entries: Callable[[], Entries],
        report: Report,
    ) -> None:
        self._lock, self._global_entries, self._own_entries, self._report = (
            lock,
            global_entries,
            own_entries,
            report,
        )
        self._loading = ForkSafeLock()
        self._asked_for = False
        self._warned = False
        self._global: dict[int, bool] = {}
        """The global callbacks in PyTorch, and whether each is enabled."""
        self._registered: dict[int, weakref.finalize[..., Any]] = {}
        """The callbacks of threads that PyTorch has: each until a thread removes it, or none has
        it any more.
        """

    def repeat_global(self) -> None:
        """Copy the global callbacks, which have changed."""
        if _library is None:
            return
        wanted = {entry.handle: entry for entry in self._global_entries()}
        for handle in self._global.keys() - wanted.keys():
            del self._global[handle]
            _library.remove(handle)
        for handle, entry in wanted.items():
            if handle not in self._global:
                self._global[handle] = True
                self._add(_library, entry, is_global=True)
            if self._global[handle] != entry.enabled:
                self._global[handle] = entry.enabled
                _library.switch_global(handle, entry.enabled)

    def repeat_thread(self, entries: Entries) -> None:
        """Copy the calling thread's own callbacks, which are these now."""
        if _library is None:
            return
        for entry in entries:
            if entry.handle not in self._registered and self._add(_library, entry, is_global=False):
                finalizer = self._registered[entry.handle] = weakref.finalize(
                    entry.callback, self.release, {entry.handle}
                )
                finalizer.atexit = False
        _library.set_thread(tuple([entry.handle for entry in entries if entry.enabled]))

    def release(self, handles: Set[int]) -> None:
        """Give up the places of callbacks of threads; a thread that still has one places it
        again at its next change.
        """
        for handle in handles & self._registered.keys():
            self._registered.pop(handle).detach()
            if _library is not None:
                _library.remove(handle)

    def fail(self, handle: int) -> None:
        """Keep every thread from calling a callback that failed, and that is no longer among the
        global ones.
        """
        if _library is not None:
            _library.fail(handle)

    def seed(self, seed: int) -> None:
        """Start the calling thread's sampling anew from this seed."""
        if _library is not None:
            _library.seed(seed)

    def _add(self, library: Library, entry: CallbackEntry, *, is_global: bool) -> bool:
        callback = entry.callback
        is_registered: bool = library.add(
            entry.handle,
            is_global=is_global,
            start=callback.start(),
            end=callback.end(),
            should_run=callback.should_run(),
            scopes=scopes_mask(callback.scopes()),
            sampling_prob=1.0 if callback.should_run() is not None else callback.sampling_prob(),
            needs_inputs=callback.needs_inputs(),
            needs_outputs=callback.needs_outputs(),
            needs_ids=callback.needs_ids(),
        )
        if not is_registered and not self._warned:
            self._warned = True
            log.warning(
                "more than 64 callbacks: those added last see none of PyTorch's operators; observe"
                " with fewer"
            )
        return is_registered

    def finish_adding(self) -> None:
        """Load the library after callbacks were added, now or with torch.

        It takes long, so the caller holds no lock of ours.

        While another thread loads the library, this one waits, and then installs its own callbacks.
        """
        if _library is not None:
            return
        with self._loading:
            ask = not self._asked_for
            self._asked_for = True
            if ask:
                # A thread of ours may load, and must not import.
                from otel_recfn.pytorch import observer_build  # noqa: F401

                call_at_torch_import(self._load)
        with self._lock:
            self.repeat_thread(self._own_entries())

    def _load(self) -> None:
        with self._loading:
            try:
                load(self._report)
            except (RecfnError, OSError) as error:
                log.warning(
                    "Python callbacks do not see PyTorch's operators, only Python ranges: %s; then"
                    " start the program again",
                    error,
                )
                return
        with self._lock:
            self.repeat_global()
            self.repeat_thread(self._own_entries())
