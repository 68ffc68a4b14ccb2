"""A part of a plan has a part of every column, whatever columns there are."""

from __future__ import annotations

from typing import Any

import numpy as np

from batches import context, make_batch
from otel_recfn.batches.stage import Stage


def test_a_part_has_the_same_rows_of_every_column() -> None:
    plan, _ = Stage(0).plan(make_batch([{"context": context(5, 7 + number % 2)} for number in range(10)]), {})
    part: dict[str, Any] = plan.part(slice(3, 7))._asdict()
    for name, whole in plan._asdict().items():
        if name in ("batch", "spans_above"):
            assert part[name] is whole
        else:
            assert np.array_equal(part[name], whole[3:7]), name
