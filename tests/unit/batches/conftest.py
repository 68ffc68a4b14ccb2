"""Both twins of folding."""

from __future__ import annotations

import pytest
from fold_programs import NEVER_FULL, MakeFold

from otel_recfn.batches.fold.protocol import MOST_WAITING, Fold
from otel_recfn.batches.fold.python_fold import PythonFold


@pytest.fixture(params=["python, 3 wait", "native"])
def fold_of(request: pytest.FixtureRequest) -> MakeFold:
    """Makes folds of one twin, in which as many ranges wait as usual or few."""
    kind, _, waiting = request.param.partition(", ")
    if kind == "native":
        pytest.importorskip("otel_recfn._native")
        from otel_recfn.batches.fold.native_fold import NativeFold

    def make(budget: int, min_duration_ns: int = 0, most_rows: int = NEVER_FULL) -> Fold:
        twin = NativeFold if kind == "native" else PythonFold
        return twin(budget, min_duration_ns, most_rows, 3 if waiting else MOST_WAITING)

    return make
