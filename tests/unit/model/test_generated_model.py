"""What is written from the table of columns and from the enums is what they say."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from helpers.batches import make_batch
from helpers.timeouts import PATIENCE_S
from otel_recfn.model import columns
from otel_recfn.model.batch import Batch, Event
from otel_recfn.model.columns import BY_SIZE, COLUMNS, Column

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "scripts" / "generate_model.py"
REGENERATE = f"run {sys.executable} scripts/generate_model.py and commit what it writes"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_model", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_written_files_are_what_the_declarations_give(generator: Any) -> None:
    stale = [
        str(path)
        for path, text in generator.files().items()
        if path.read_text(encoding="utf-8") != text
    ]
    assert not stale, f"{stale}: {REGENERATE}"


def test_a_column_that_is_declared_alone_is_found(
    generator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    colour = Column(
        np.uint32, str, "Of the range.", is_optional=True, attribute="recfn.colour", name="colour"
    )
    monkeypatch.setattr(generator, "BY_SIZE", (*BY_SIZE, colour))
    stale = [
        path.name
        for path, text in generator.files().items()
        if path.read_text(encoding="utf-8") != text
    ]
    assert stale == ["columns.hpp"]
    assert (
        '  OPTIONAL_TEXT(uint32_t, colour, 0, "recfn.colour", "", false)'
        in generator.columns_header()
    )


def test_it_runs_as_a_script_and_changes_nothing() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    assert done.stdout == ""


@pytest.mark.parametrize("column", [pytest.param(column, id=column.name) for column in COLUMNS])
def test_a_batch_and_an_event_have_the_column(column: Column[Any, Any]) -> None:
    batch = make_batch([{}])
    assert getattr(batch, column.name).dtype == np.dtype(column.dtype)
    assert isinstance(getattr(next(batch.events()), column.name), column.value)


def test_the_columns_come_first_and_in_their_order() -> None:
    names = [column.name for column in COLUMNS]
    assert list(Batch.__dataclass_fields__)[: len(names)] == names
    assert list(Event.__dataclass_fields__) == names
    assert len(set(names)) == len(names)
    assert set(columns.OPENED_COLUMNS) <= set(names)
