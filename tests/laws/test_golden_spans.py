"""Programs export the spans of their golden files: names, parents, counts, links, attributes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from golden_spans import FOLDER, recorded  # noqa: E402
from programs import PROGRAMS  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        not torch.__version__.startswith("2.13."), reason="PyTorch 2.13 names its operators so"
    ),
]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_exports_the_same_spans(name: str) -> None:
    golden = (FOLDER / f"{name}.txt").read_text(encoding="utf-8")
    assert recorded(PROGRAMS[name]) == golden, (
        "if that is meant, golden_spans.py writes the files anew: read the difference"
    )


def test_each_golden_file_is_of_a_program() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(PROGRAMS)
