"""What this process is to the program that it belongs to: the one that was launched, a child of it, or a rank among others.

Nothing but the standard library is imported for it, and of that only what every process has.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from otel_recfn.support.spawned import given_here

RANK = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
"""Variables of torchrun and other launchers; the first that is a number counts."""
LOCAL_RANK = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
WORLD_SIZE = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
RESTARTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
MOST_DIGITS = 9
_imported_in = os.getpid()


class WorkerProcess(NamedTuple):
    """What a process works for that another one has begun."""

    name: str
    """What its work is called."""
    of_one_caller: bool
    """It lives for what it was begun in alone; else for others, too, which come later."""


def is_child() -> bool:
    """Whether a process of this program has made this one: by a fork, or by multiprocessing. By a fork that was before anything
    of this package was imported: not known."""
    processes = sys.modules.get("multiprocessing.process")
    has_parent = processes is not None and processes.parent_process() is not None
    return os.getpid() != _imported_in or has_parent or is_beginning()


def is_beginning() -> bool:
    """Whether multiprocessing makes this process, and may not have told it of its parent: it does after the main module is
    imported and the arguments are unpickled."""
    processes = sys.modules.get("multiprocessing.process")
    is_inheriting = processes is not None and hasattr(processes.current_process(), "_inheriting")
    return is_inheriting or given_here() is not None


def number_of(variables: Iterable[str], environment: Mapping[str, str] | None = None) -> int | None:
    """What the first of the variables says that has a number; None where none has."""
    found = os.environ if environment is None else environment
    for variable in variables:
        text = found.get(variable, "")
        if text.isdecimal() and text.isascii() and len(text) <= MOST_DIGITS:
            return int(text)
    return None


def addition(child: bool = False) -> str:
    """What the names of this process's files have, that no other process of the program has; empty for the launched one.

    ``child``: it is known to be a child.
    """
    rank, restarts = number_of((*RANK, *LOCAL_RANK)), number_of(RESTARTS)
    parts = [f".rank{rank}"] if rank is not None else []
    parts += [f".restart{restarts}"] if rank is not None and restarts else []
    parts += [f".pid{os.getpid()}"] if child or is_child() else []
    return "".join(parts)


LONGEST_ADDITION = len(f".rank{'9' * MOST_DIGITS}.restart{'9' * MOST_DIGITS}.pid4194304")
"""All of them, as a regular expression; a number follows where the name is in use."""
