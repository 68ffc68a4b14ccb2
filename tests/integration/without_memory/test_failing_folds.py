"""Every single allocation of folding natively fails once: a row is taken in whole or not at all."""

from __future__ import annotations

from collections.abc import Callable

FOLD = """
import random

import numpy as np
from failing_allocations import each_failure
from otel_recfn.batches.fold.units import Fold
from otel_recfn.model.events import EventFlag, make_event_id

LINKABLE = 1 << 31
draw, rows, open_ranges, begun = random.Random(1), [], [], 0
for clock in range(6000):
    if open_ranges and (len(open_ranges) == 7 or draw.random() < 0.5):
        event_id, start = open_ranges.pop()
        parent, flags = open_ranges[-1][0] if open_ranges else 0, draw.choice((0, 0, 0, LINKABLE, int(EventFlag.ASYNC)))
        unit = clock % 2 if draw.random() < 0.1 else 0
        rows.append((unit, event_id, parent, draw.randrange(1, 300), start, clock - start, flags))
    else:
        begun += 1
        open_ranges.append((make_event_id(1, begun), clock))
kinds = (np.uint32, np.uint64, np.uint64, np.uint32, np.int64, np.int64, np.uint32)
columns = [np.array(column, kind) for column, kind in zip(zip(*rows), kinds)]
fold, told, added = None, None, 0


def first_rows():
    global fold, added
    fold = Fold(100, 0, 1 << 40, 400)
    added = fold._fold.add(*columns, 0)


def finish():
    global told
    told = fold.finish([1, 0], [90, 50], [False, True])


def all_told():
    return [bytes(column) for column in told] + [bytes(column) for column in fold.finish([0], [5], [False])]


def ended():
    finish()
    return all_told()


first_rows()
assert added == len(rows)
expected, cut, raising = ended(), 0, 0
fold, added = None, 0
for raised in each_failure(first_rows):
    assert raised is None or isinstance(raised, MemoryError), repr(raised)
    if fold is None:
        continue
    cut, raising = cut + (0 < added < len(rows)), raising + (raised is not None)
    assert sum(fold.rows([0, 1])) == added
    while added < len(rows):
        added += fold._fold.add(*[column[added:] for column in columns], added)
    assert ended() == expected
    fold, added = None, 0
assert cut > 10 and raising, (cut, raising)

first_rows()
failed = 0
for raised in each_failure(finish):
    if raised is None:  # it did without
        assert all_told() == expected
        first_rows()
        continue
    assert isinstance(raised, MemoryError), repr(raised)
    failed += 1
assert failed > 10, failed
assert all_told() == expected
"""

FEW_AT_ONCE = """
import numpy as np
from failing_allocations import with_failures
from otel_recfn.batches.fold.units import Fold
from otel_recfn.model.events import make_event_id

MUCH = 1 << 20  # bytes: what units like the first one would need
UNITS, ROWS = 400, 700
rows = [(max(0, row - 300), make_event_id(1, row + 1), 0, row + 1, row, 5, 0) for row in range(ROWS)]
kinds = (np.uint32, np.uint64, np.uint64, np.uint32, np.int64, np.int64, np.uint32)
fold, told = Fold(9, 0, 1 << 40), []
assert fold._fold.add(*[np.array(column, kind) for column, kind in zip(zip(*rows), kinds)], 0) == ROWS
raised, failed = with_failures(
    lambda: told.append(fold.finish(list(range(UNITS)), [0] * UNITS, [False] * UNITS)), 0, 1_000_000, MUCH
)
assert failed, "it asks for no more than it needs: make the first unit larger"
assert raised is None, raised
assert told[0].path_count.sum() == ROWS
"""


def test_folding_takes_a_row_in_whole_or_not_and_tells_of_all_later(run_failing: Callable[..., object]) -> None:
    run_failing(FOLD)


def test_units_are_told_where_there_is_only_the_memory_that_they_need(run_failing: Callable[..., object]) -> None:
    run_failing(FEW_AT_ONCE)
