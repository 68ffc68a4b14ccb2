"""Takes the native twins of what folding needs, unless there are none or the user asks for Python's."""

from __future__ import annotations

from collections.abc import Callable

from otel_recfn.batches.fold.gathered import Gathers, gather_in_python
from otel_recfn.batches.fold.protocol import MOST_WAITING, Fold
from otel_recfn.batches.fold.python_fold import PythonFold
from otel_recfn.batches.fold.python_teller import tell_in_python
from otel_recfn.batches.fold.told import Tells
from otel_recfn.support.twins import native_twin

MakesFold = Callable[[int, int, int, int], Fold]


def fold(budget: int, min_duration_ns: int, most_rows: int, most_waiting: int = MOST_WAITING) -> Fold:
    """Open units, none yet.

    Args:
        budget: how many ranges a unit keeps at most.
        min_duration_ns: shorter ranges are not kept.
        most_rows: a unit with so many rows has to be finished in part.
        most_waiting: so many rows of a unit, at least one, wait before they are compared.
    """
    in_python: MakesFold = PythonFold
    return native_twin(_native_fold, in_python)(budget, min_duration_ns, most_rows, most_waiting)


def gatherer() -> Gathers:
    """Who puts rows of several batches together."""
    return native_twin(_native_gatherer, gather_in_python)


def teller() -> Tells:
    """Who tells what was folded."""
    return native_twin(_native_teller, tell_in_python)


def _native_fold() -> MakesFold:
    from otel_recfn.batches.fold.native_fold import NativeFold

    return NativeFold


def _native_gatherer() -> Gathers:
    from otel_recfn.batches.fold.native_gather import gather_natively

    return gather_natively


def _native_teller() -> Tells:
    from otel_recfn.batches.fold.native_teller import tell_natively

    return tell_natively
