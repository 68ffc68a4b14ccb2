"""README.md and docs/: short, with links that lead somewhere, and commands that there are; files that ARCHITECTURE.md names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "otel_recfn"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

pytestmark = pytest.mark.one_python


def links(page: Path) -> list[str]:
    """What a page links to and shows, of this repository."""
    found = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    return [link.partition("#")[0] for link in found if "://" not in link]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 1200


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_its_links_lead_somewhere(page: Path) -> None:
    assert [link for link in links(page) if not (page.parent / link).exists()] == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached = {(ROOT / link).resolve() for link in links(ROOT / "README.md")}
    assert [page.name for page in PAGES[1:] if page.resolve() not in reached] == []


def test_what_is_to_be_opened_is_there() -> None:
    """By the path in the package or the repository; a name without a folder stands where the one before it does."""
    table = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").partition("## To change X, open Y")[2]
    folder, missing = "", []
    for name in re.findall(r"`([\w/]+\.(?:py|hpp|cpp))`", table):
        folder = name.rpartition("/")[0] if "/" in name else folder
        path = Path(folder, Path(name).name)
        missing += [] if (PACKAGE / path).is_file() or (ROOT / path).is_file() else [name]
    assert missing == []


def test_the_commands_that_it_says_are_there() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"`make (\w+)", text):
            assert f"\n{target}:" in makefile
        for script in re.findall(r"(?:scripts|examples|benchmarks|tests/soak)/\w+\.(?:py|sh)", text):
            assert (ROOT / script).exists()
