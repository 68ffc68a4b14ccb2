"""Takes the native twins of what folding needs, unless there are none or the user asks for Python's."""

from __future__ import annotations

from otel_recfn.batches.fold.gathered import Gathers, gather_in_python
from otel_recfn.batches.fold.protocol import MOST_WAITING, Fold
from otel_recfn.batches.fold.python_fold import PythonFold
from otel_recfn.batches.fold.python_teller import tell_in_python
from otel_recfn.batches.fold.told import Tells
from otel_recfn.support.twins import wanted_twin


def fold(budget: int, min_duration_ns: int, most_rows: int, most_waiting: int = MOST_WAITING) -> Fold:
    """Open units, none yet. ``recording/backend.py`` says why there is no native part.

    Args:
        budget: how many ranges a unit keeps at most.
        min_duration_ns: shorter ranges are not kept.
        most_rows: a unit with so many rows has to be finished in part.
        most_waiting: so many rows of a unit, at least one, wait before they are compared.
    """
    if wanted_twin() != "python":
        try:
            from otel_recfn.batches.fold.native_fold import NativeFold
        except ImportError:  # no compiler where this was installed
            pass
        else:
            return NativeFold(budget, min_duration_ns, most_rows, most_waiting)
    return PythonFold(budget, min_duration_ns, most_rows, most_waiting)


def gatherer() -> Gathers:
    """Who puts rows of several batches together. Imports: for a thread of the program's."""
    if wanted_twin() != "python":
        try:
            from otel_recfn.batches.fold.native_gather import gather_natively
        except ImportError:  # no compiler where this was installed
            pass
        else:
            return gather_natively
    return gather_in_python


def teller() -> Tells:
    """Who tells what was folded. Imports: for a thread of the program's."""
    if wanted_twin() != "python":
        try:
            from otel_recfn.batches.fold.native_teller import tell_natively
        except ImportError:  # no compiler where this was installed
            pass
        else:
            return tell_natively
    return tell_in_python
