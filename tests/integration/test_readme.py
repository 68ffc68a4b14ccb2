"""The README's Python, as a newcomer runs it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
AROUND = """
import logging, sys
logging.basicConfig(stream=sys.stdout, level=logging.WARNING)
import torch
from otel_recfn import InMemorySink, OtelRecordFunctionInstrumentor
instrumentor = OtelRecordFunctionInstrumentor()
model = torch.nn.TransformerEncoderLayer(16, 2, batch_first=True)
batch = torch.ones(2, 5, 16)
def load(): return batch
"""

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("needs_observer")]


def test_it_has_examples() -> None:
    assert len(BLOCKS) >= 5


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_an_example_runs_without_a_warning(run_program: Callable[..., Any], block: str) -> None:
    every_range = block.replace("sampling_prob(0.01)", "sampling_prob(1.0)")
    done = run_program(AROUND + every_range)
    assert "WARNING" not in done.stdout
    if every_range != block:
        assert "aten::addmm [torch.Size" in done.stdout
