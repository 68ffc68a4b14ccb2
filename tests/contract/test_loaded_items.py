"""The item that a DataLoader makes, found in frames on each CPython: a comprehension has a frame of
its own up to 3.11. ``integration/test_data_workers.py`` has PyTorch's own loader.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from otel_recfn.sources.loaded_items import FETCHER, loaded_item

LOADER = """
class _MapDatasetFetcher:
    dataset = collate = None

    def fetch(self, possibly_batched_index):
        if hasattr(self.dataset, "__getitems__"):
            return self.dataset.__getitems__(possibly_batched_index)
        if not isinstance(possibly_batched_index, list):
            return self.dataset[possibly_batched_index]
        made = [self.dataset[idx] for idx in possibly_batched_index]
        return made + [self.collate()]

class Part:
    def __getitems__(self, indices):
        return [self.whole[2 * idx] for idx in indices]
"""


class Dataset:
    """Its items are what a sample says of them."""

    def __getitem__(self, _index: object) -> str:
        return decode()


def decode() -> str:
    return loaded_item(sys._getframe())


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module with the names of PyTorch's."""
    module = ModuleType(FETCHER[0])
    exec(LOADER, module.__dict__)
    monkeypatch.setitem(sys.modules, FETCHER[0], module)
    fetcher = getattr(module, FETCHER[1])
    monkeypatch.setattr(fetcher, "dataset", Dataset())
    monkeypatch.setattr(fetcher, "collate", staticmethod(decode))
    return module


def test_an_item_has_its_index_and_a_batch_has_none(loader: Any) -> None:
    fetch = getattr(loader, FETCHER[1])().fetch
    assert fetch([3, 4]) == ["3", "4", ""]
    assert fetch(7) == "7"
    assert fetch("seven") == "seven"


def test_an_index_that_would_run_code_to_become_a_text_is_left_out(loader: Any) -> None:
    class Index:
        def __str__(self) -> str:
            raise AssertionError

    fetch = getattr(loader, FETCHER[1])().fetch
    assert fetch(Index()) == ""
    assert fetch([Index(), (1, 2)]) == ["", "", ""]


def test_whatever_runs_outside_of_a_loader_makes_no_item(loader: Any) -> None:
    assert decode() == ""


def test_a_part_of_a_dataset_is_asked_for_its_own_indices(loader: Any) -> None:
    """It makes a batch itself, in a function of PyTorch's."""
    fetcher = getattr(loader, FETCHER[1])
    fetcher.dataset = part = loader.Part()
    part.whole = Dataset()
    assert fetcher().fetch([5, 6]) == ["5", "6"]
