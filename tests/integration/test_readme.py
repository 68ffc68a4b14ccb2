"""The Python of README.md and of the pages in docs/, as a newcomer runs it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
AROUND = """
import json, logging, sys
logging.basicConfig(stream=sys.stdout, level=logging.WARNING)
import torch
from otel_recfn import InMemorySink, OtelRecordFunctionInstrumentor
instrumentor = OtelRecordFunctionInstrumentor()
model = torch.nn.TransformerEncoderLayer(16, 2, batch_first=True)
batch = torch.ones(2, 5, 16)
def load(): return batch
def handle(request): return json.dumps(request)
request = {}
"""


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


PAGES = {path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))}
EXAMPLES = [pytest.param(block, id=page) for page, text in PAGES.items() for block in blocks(text)]

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("needs_observer")]


def test_the_readmes_program_runs_as_pasted_and_prints_what_it_says(run_program: Callable[..., Any]) -> None:
    [program] = blocks(README)
    assert len([line for line in program.splitlines() if line]) <= 10
    done = run_program(program)
    said = re.search(r"^It prints (.*?), \.\.\.", README, re.MULTILINE | re.DOTALL)
    assert said
    assert set(re.findall(r"`(.*?)`", said[1])) <= set(done.stdout.splitlines())
    assert done.stderr == ""


def test_the_pages_have_examples() -> None:
    assert len(EXAMPLES) >= 5


@pytest.mark.parametrize("block", EXAMPLES)
def test_an_example_runs_without_a_warning(run_with_torch: Callable[..., Any], block: str) -> None:
    every_range = block.replace("sampling_prob(0.01)", "sampling_prob(1.0)")
    done = run_with_torch(AROUND + every_range)
    assert "WARNING" not in done.stdout
    if every_range != block:
        assert "aten::addmm [torch.Size" in done.stdout
