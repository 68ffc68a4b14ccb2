"""What a child that isn't forked by its parent gets from it: what is recorded there, and the span that is current.

    parent   Process.start() ► multiprocessing.spawn.get_preparation_data() ◄ our entry is added to what it returns
    child    the entry is unpickled, first of all: what it says stands in ``multiprocessing.spawn``
             ► the main module is imported, the target and its arguments are unpickled
             ► ``begin``, before Process._bootstrap(): recording starts where torch is imported, else with its import

So every way by which multiprocessing starts a child works, but a fork, which needs none of this: spawn and the fork server,
also one that was started earlier, pools, ``concurrent.futures``, ``torch.multiprocessing``. The child may not be able to import
this package when it unpickles the entry, as it gets its parent's ``sys.path`` only then. So the entry is text that Python's
``exec`` takes, and holds nothing but objects of Python's own.

Recording doesn't begin before the target does: the settings may hold objects of the main module's classes, a sink or a hook.

``spawn.get_preparation_data`` and ``Process._bootstrap`` are details of multiprocessing that nobody promises;
``tests/integration/test_spawned_children.py`` notices when they change. Without them, such children aren't recorded.

This module is imported in every such child: it imports no more than it needs, and nothing of OpenTelemetry.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from otel_recfn.support.wrapped_function import WrappedFunction

SPAWN = "multiprocessing.spawn"
FUNCTION = "get_preparation_data"
STARTERS = ("multiprocessing.popen_spawn_posix", "multiprocessing.popen_forkserver")
"""One of them is imported before a process starts its first child by ``FUNCTION``."""
ENTRY = "otel_recfn"
GIVEN = "_given_by_otel_recfn"
ARRIVES = f"""
def arrive():
    from multiprocessing import process, spawn
    spawn.{GIVEN} = given
    bootstrap = process.BaseProcess._bootstrap
    def begin_and_bootstrap(*args, **kwargs):
        try:
            if process.BaseProcess._bootstrap is begin_and_bootstrap:
                process.BaseProcess._bootstrap = bootstrap
            from otel_recfn.support.spawned import begin
            begin()
        except Exception:  # the program goes on
            pass
        return bootstrap(*args, **kwargs)
    process.BaseProcess._bootstrap = begin_and_bootstrap
try:
    arrive()
except Exception:  # another multiprocessing: the child runs all the same
    pass
"""
Given = Mapping[str, Any]
"""Of Python's own objects alone. ``starts``: a module whose ``start_in_child`` is called, with the first of the modules
``used_with``, or ``at_once``. ``span``: as ``SpanOfParent``, or None. ``is_first``: of the program's children. The rest is
for who starts."""


class SpanOfParent(NamedTuple):
    """The span that was current where a child was started."""

    trace_id: int
    span_id: int
    flags: int
    trace_state: str


class _Entry:
    """Part of the preparation data."""

    def __init__(self, given: Given) -> None:
        self._given = given

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, dict[str, Any]]]:
        global _gave
        is_first, _gave = not _gave and is_the_one_to_tell(), True
        return exec, (ARRIVES, {"given": {**self._given, "is_first": is_first}})


class _Waiting:
    """Looks at what is imported; a finder that finds nothing itself."""

    def __init__(self, given: Given) -> None:
        self._given = given

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """As Python asks each finder, before anything is imported."""
        if name in STARTERS:
            watch()
        if name not in self._given["used_with"] or not self.call_off():
            return None
        _start(self._given)
        found = (finder.find_spec(name, path, target) for finder in list(sys.meta_path))  # there may be one more, before others
        return next(filter(None, found), None)

    def call_off(self) -> bool:
        """Whether it still waited."""
        try:
            sys.meta_path.remove(self)
        except ValueError:
            return False
        return True


_give: Callable[[], Given] | None = None
"""Makes what children get; None: nothing."""
_wrapper: WrappedFunction | None = None
_waiting: _Waiting | None = None
_gave = _begun = False


def hand_over(give: Callable[[], Given]) -> None:
    """From now on the children of this process get what ``give`` returns, and the span that is current; see ``watch``."""
    global _give
    _give = give


def watch() -> None:
    """Look at the children that multiprocessing starts, where it has been imported and somebody hands something over."""
    global _wrapper
    spawn = sys.modules.get(SPAWN)
    if _give is None or _wrapper is not None or not callable(getattr(spawn, FUNCTION, None)):
        return
    from otel_recfn.support.wrapped_function import WrappedFunction

    _wrapper = WrappedFunction(spawn, FUNCTION, _with_entry)
    _wrapper.install()


def stop() -> None:
    """Hand nothing over any more, and don't start here what waits for that."""
    global _give, _wrapper, _waiting
    _give = None
    if _wrapper is not None:
        _wrapper.remove()
        _wrapper = None
    if _waiting is not None:
        _waiting.call_off()
        _waiting = None


def begin() -> None:
    """In a child: start recording as its parent does, or wait for the import of what is recorded. Does so once."""
    global _begun, _waiting
    given = given_here()
    if given is None or _begun:
        return
    _begun = True
    if _give is None:  # else the program has called ``instrument()`` here
        hand_over(dict(given).copy)
        if _is_any_imported(STARTERS):
            watch()
    _forget_readings()
    if given["at_once"] or _is_any_imported(given["used_with"]):
        _start(given)
    else:
        _waiting = _Waiting(given)
        sys.meta_path.insert(0, _waiting)


def given_here() -> Given | None:
    """What this process got; None where it got nothing, as one that is no such child."""
    return getattr(sys.modules.get(SPAWN), GIVEN, None)


def is_the_one_to_tell() -> bool:
    """Whether it is this process that says what holds for all children of a program: the first of them, or no such child."""
    given = given_here()
    return given is None or given["is_first"] is True


def span_of_parent() -> SpanOfParent | None:
    """The span that was current where this process was started, if it is such a child."""
    given = given_here()
    span = given["span"] if given is not None else None
    return SpanOfParent(*span) if span is not None else None


def span_around_thread() -> SpanOfParent | None:
    """The span of the parent that the calling thread began in: such a child's main thread. Other threads began in nothing."""
    around = span_of_parent()
    is_main = around is not None and threading.get_ident() == threading.main_thread().ident  # current_thread() may make one
    return around if is_main else None


def _with_entry(data: Any, *_arguments: Any, **_keywords: Any) -> Any:
    give = _give
    if give is not None and isinstance(data, dict):
        data[ENTRY] = _Entry({**give(), "span": _current_span()})
    return data


def _current_span() -> tuple[int, int, int, str] | None:
    """The program's: our ranges around it may not become spans."""
    api = sys.modules.get("opentelemetry.trace")
    if api is not None:
        span = api.get_current_span()
        context = getattr(span, "__wrapped__", span).get_span_context()
        if context.is_valid:
            return context.trace_id, context.span_id, int(context.trace_flags), context.trace_state.to_header()
    around = span_around_thread()
    return tuple(around) if around is not None else None  # type: ignore[return-value]


def _forget_readings() -> None:
    """A fork server may have asked already what is current here."""
    context = sys.modules.get("opentelemetry.context")
    if context is not None:
        context.detach(context.attach(context.get_current()))


def _is_any_imported(modules: Iterable[str]) -> bool:
    return not sys.modules.keys().isdisjoint(modules)


def _start(given: Given) -> None:
    try:
        import_module(given["starts"]).start_in_child(given)
    except Exception:  # the program goes on
        import logging

        logging.getLogger("otel_recfn").exception("otel-recfn could not start in this child process; it is not recorded")
