"""The Python twin of finding what is owed."""

from __future__ import annotations

import numpy as np

from otel_recfn.batches.number_sets import are_among, distinct, is_in_ordered
from otel_recfn.batches.owed.protocol import Ids


def still_owed_in_python(before: Ids, around: Ids, came: Ids) -> Ids:
    """See ``StillOwed``."""
    around, came = _without_repeats(around), np.sort(np.append(came, np.uint64(0)))
    newly = distinct(around[~are_among(around, came)])
    before = before[~are_among(before, came)]
    return np.concatenate([newly, before[~is_in_ordered(before, newly)]])


def _without_repeats(ids: Ids) -> Ids:
    """Once what stands together: siblings mostly do."""
    changes = np.flatnonzero(ids[1:] != ids[:-1]) + 1
    return np.append(ids[:1], ids[changes])
