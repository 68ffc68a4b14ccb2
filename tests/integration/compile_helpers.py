"""What tests of compiled code share."""

from __future__ import annotations

import pytest

from otel_recfn import RecordScope
from otel_recfn.model.batch import Event

torch = pytest.importorskip("torch")
from compiled_forms import FORMS, Compiled  # noqa: E402

VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
X = torch.ones(2, 2)
USER_SCOPE = RecordScope.USER_SCOPE
CAPTURE = "capture_profiler_record_function"
captures = pytest.mark.skipif(not hasattr(torch._dynamo.config, CAPTURE), reason="this PyTorch keeps ranges out of graphs")
every_form = pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in FORMS.items()])


def is_whole(found: Compiled) -> bool:
    if found.error is not None:
        raise found.error
    return len(found.graphs) == 1


def names(events: list[Event]) -> list[str]:
    """Of the ranges that the program made; PyTorch 2.4 makes some of its own as it compiles."""
    return [event.name for event in events if event.scope == RecordScope.USER_SCOPE and "dynamo_timed" not in event.name]
