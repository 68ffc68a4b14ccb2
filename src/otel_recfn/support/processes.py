"""The place of this process in its program (launched, a child, a rank), and what children get that
aren't forked.

    parent   Process.start() ► multiprocessing.spawn.get_preparation_data()
             ◄ our entry is added to what it returns
    child    the entry is unpickled, first of all, into ``multiprocessing.spawn``
             ► the main module is imported, the target and its arguments are unpickled
             ► ``begin``, before Process._bootstrap(): the instrumentor starts as
             opentelemetry-instrument starts it

So every way by which multiprocessing starts a child works, but a fork, which needs none of this:
spawn and the fork server, also one that was started earlier, pools, ``concurrent.futures``,
``torch.multiprocessing``. The child may not be able to import this package when it unpickles the
entry, as it gets its parent's ``sys.path`` only then. So the entry is text that Python's ``exec``
takes, and holds nothing but objects of Python's own. Recording doesn't begin before the target
does: the settings may hold objects of the main module's classes, a sink or a hook.

``spawn.get_preparation_data`` and ``Process._bootstrap`` are details of multiprocessing that nobody
promises; ``tests/integration/test_spawned_children.py`` notices when they change. Without them,
such children aren't recorded.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

from otel_recfn.support.foreign import WrappedFunction

RANK = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
"""Variables of torchrun and other launchers; the first that is a number counts."""
LOCAL_RANK = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
WORLD_SIZE = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
RESTARTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
MAX_DIGITS = 9
_imported_in = os.getpid()


def _launch_id() -> str:
    """An id that the ranks share which one torchrun has launched on this machine; else one of this
    process alone.

    Each launch, and each restart, has a new folder for its workers' error files:
    ``.../attempt_0/<local rank>/error.json``. Its other variables may be the same the next time:
    the run's id is ``none`` unless somebody gives one, the port a fixed one.
    """
    launch = os.path.dirname(os.path.dirname(os.environ.get(ERROR_FILE, "")))
    if "TORCHELASTIC_RUN_ID" not in os.environ or not os.path.basename(launch).startswith(
        "attempt_"
    ):
        return os.urandom(8).hex()
    from hashlib import sha256  # behind torchrun alone, as it takes a millisecond

    return sha256(os.fsencode(launch)).hexdigest()[:16]


_run_id = _launch_id()

SPAWN = "multiprocessing.spawn"
FUNCTION = "get_preparation_data"
ENTRY = "otel_recfn"
INHERITED = "_given_by_otel_recfn"
ARRIVES = f"""
def arrive():
    from multiprocessing import process, spawn
    spawn.{INHERITED} = given
    bootstrap = process.BaseProcess._bootstrap
    def begin_and_bootstrap(*args, **kwargs):
        try:
            if process.BaseProcess._bootstrap is begin_and_bootstrap:
                process.BaseProcess._bootstrap = bootstrap
            from otel_recfn.support.processes import begin
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
Inherited = Mapping[str, Any]
"""The settings that a child gets, in Python's own objects alone.

``starts``: the module whose ``start_in_child`` is called. ``span``: the values of a
``ParentProcessSpan``, or None. ``run``: the ``run_id``. ``is_first``: whether it logs for all
children. Others are the module's.
"""


class WorkerProcess(NamedTuple):
    """The work for which another process has begun this one."""

    name: str
    """The name of the work."""
    single_caller: bool
    """Whether it lives only for the span in which it was begun; else others use it later, too."""


class ParentProcessSpan(NamedTuple):
    """The span that was current where a child was started."""

    trace_id: int
    span_id: int
    flags: int
    trace_state: str


# --- this process


def run_id() -> str:
    """The id of this run of the program, which its children take over, and ranks of one launch by
    torchrun share.

    A fork has it with its memory, other children get it with the settings.
    """
    inherited = inherited_here()
    return str(inherited["run"]) if inherited is not None else _run_id


def is_child() -> bool:
    """Whether a process of this program made this one, by multiprocessing, or by a fork after
    this package was imported.
    """
    processes = sys.modules.get("multiprocessing.process")
    has_parent = processes is not None and processes.parent_process() is not None
    return os.getpid() != _imported_in or has_parent or is_beginning()


def is_beginning() -> bool:
    """Whether multiprocessing is making this process, and may not have set its parent, as it
    does after loading the target.
    """
    processes = sys.modules.get("multiprocessing.process")
    is_inheriting = processes is not None and hasattr(processes.current_process(), "_inheriting")
    return is_inheriting or inherited_here() is not None


def number_in_environment(variables: Iterable[str]) -> int | None:
    """The number in the first of the variables that has one; None if none has."""
    texts = [os.environ.get(variable, "") for variable in variables]
    return next(
        (
            int(text)
            for text in texts
            if text.isdecimal() and text.isascii() and len(text) <= MAX_DIGITS
        ),
        None,
    )


def addition(child: bool = False) -> str:
    """The addition to names of this process's files that no other process of the program has; empty
    for the launched one.

    ``child``: it is known to be a child.
    """
    rank = number_in_environment((*RANK, *LOCAL_RANK))
    restarts = number_in_environment(RESTARTS)
    rank_part = (
        f".rank{rank}" + (f".restart{restarts}" if restarts else "") if rank is not None else ""
    )
    return rank_part + (f".pid{os.getpid()}" if child or is_child() else "")


# --- what the parent gave, in a child that wasn't forked


def inherited_here() -> Inherited | None:
    """The data that the parent gave; None if this is no such child."""
    return getattr(sys.modules.get(SPAWN), INHERITED, None)


def logs_for_all_children() -> bool:
    """Whether it is this process that says what holds for all children of a program: the first
    of them, or no such child.
    """
    inherited = inherited_here()
    return inherited is None or inherited["is_first"] is True


def parent_process_span() -> ParentProcessSpan | None:
    """The span that was current where this process was started, if it is such a child."""
    inherited = inherited_here()
    span = inherited["span"] if inherited is not None else None
    return ParentProcessSpan(*span) if span is not None else None


def thread_inherited_span() -> ParentProcessSpan | None:
    """The span of the parent in which the main thread of such a child began.

    Other threads began in none.
    """
    inherited_span = parent_process_span()
    # Current_thread() may make one.
    is_main = inherited_span is not None and threading.get_ident() == threading.main_thread().ident
    return inherited_span if is_main else None


def begin() -> None:
    """Start recording as the parent does, in a child, once."""
    global _begun
    inherited = inherited_here()
    if inherited is None or _begun:
        return
    _begun = True
    context = sys.modules.get("opentelemetry.context")
    if context is not None:  # a fork server may have asked already what is current here
        context.detach(context.attach(context.get_current()))
    try:
        import_module(inherited["starts"]).start_in_child(inherited)
    except Exception:  # the program goes on
        logging.getLogger("otel_recfn").exception(
            "otel-recfn could not start in this child process; it is not recorded"
        )


# --- what its own children get

_make_inherited: Callable[[], Inherited] | None = None
"""A function that makes what children get; None: nothing."""
_wrapper: WrappedFunction | None = None
_passed_once = _begun = False


class _Entry:
    """An entry of the preparation data."""

    def __init__(self, inherited: Inherited) -> None:
        self._inherited = inherited

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, dict[str, Any]]]:
        global _passed_once
        is_first = not _passed_once and logs_for_all_children()
        _passed_once = True
        return exec, (ARRIVES, {"given": {**self._inherited, "is_first": is_first}})


def pass_to_children(make_inherited: Callable[[], Inherited]) -> None:
    """Hand over what ``make_inherited`` returns, and the current span, to this process's children
    from now on; see ``watch``.
    """
    global _make_inherited
    _make_inherited = make_inherited


def watch() -> None:
    """Watch the children that multiprocessing starts, if it is imported and somebody hands
    something over.
    """
    global _wrapper
    spawn = sys.modules.get(SPAWN)
    if (
        _make_inherited is not None
        and _wrapper is None
        and callable(getattr(spawn, FUNCTION, None))
    ):
        _wrapper = WrappedFunction(spawn, FUNCTION, _with_entry)
        _wrapper.install()


def stop() -> None:
    """Hand over nothing any more."""
    global _make_inherited, _wrapper
    _make_inherited = None
    if _wrapper is not None:
        _wrapper.remove()
        _wrapper = None


def _with_entry(data: Any, *_arguments: Any, **_keywords: Any) -> Any:
    make_inherited = _make_inherited
    if make_inherited is not None and isinstance(data, dict):
        data[ENTRY] = _Entry({**make_inherited(), "span": _current_span(), "run": run_id()})
    return data


def _current_span() -> tuple[int, int, int, str] | None:
    """The current span of the program's own: our ranges around it may not become spans."""
    api = sys.modules.get("opentelemetry.trace")
    if api is not None:
        span = api.get_current_span()
        context = getattr(span, "__wrapped__", span).get_span_context()
        if context.is_valid:
            return (
                context.trace_id,
                context.span_id,
                int(context.trace_flags),
                context.trace_state.to_header(),
            )
    inherited_span = thread_inherited_span()
    return tuple(inherited_span) if inherited_span is not None else None  # type: ignore[return-value]
