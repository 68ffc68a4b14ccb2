"""How many callbacks in Python fit at once is said in C++ and in Python: the same."""

from __future__ import annotations

import re
from pathlib import Path

import otel_recfn
from otel_recfn.callbacks.torch_callbacks import SLOTS

HEADER = Path(otel_recfn.__file__).parent / "native" / "callbacks" / "python_callbacks.hpp"


def test_both_sides_have_as_many_slots() -> None:
    (in_cpp,) = re.findall(r"^constexpr size_t kSlots = (\d+);$", HEADER.read_text(encoding="utf-8"), re.MULTILINE)
    assert int(in_cpp) == SLOTS
