"""README.md and docs/: links that lead somewhere, and commands that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

pytestmark = pytest.mark.one_python


def links(page: Path) -> list[tuple[Path, str]]:
    """What a page links to and shows, of this repository: a file, and a heading of it or
    nothing.
    """
    found = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    parts = [link.partition("#") for link in found if "://" not in link]
    return [
        ((page.parent / file).resolve() if file else page, heading) for file, _, heading in parts
    ]


def headings(page: Path) -> set[str]:
    """The headings of a page, as links name them."""
    found = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_its_links_lead_somewhere(page: Path) -> None:
    lost = [
        link
        for link in links(page)
        if not link[0].exists() or (link[1] and link[1] not in headings(link[0]))
    ]
    assert lost == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached = {file for file, _ in links(ROOT / "README.md")}
    assert [page.name for page in PAGES[1:] if page.resolve() not in reached] == []


def test_the_commands_that_it_says_are_there() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"`make ([\w-]+)", text):
            assert f"\n{target}:" in makefile
        for script in re.findall(
            r"(?:scripts|examples|benchmarks|tests/soak)/\w+\.(?:py|sh)", text
        ):
            assert (ROOT / script).exists()


def test_the_files_that_architecture_names_are_there() -> None:
    package = ROOT / "src" / "otel_recfn"
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]+\.(?:py|cpp|hpp))`", text)
    files = [
        path.as_posix()
        for folder in (package, ROOT / "tests", ROOT / "scripts")
        for path in folder.rglob("*.*pp")
    ]
    files += [
        path.as_posix()
        for folder in (package, ROOT / "tests", ROOT / "scripts")
        for path in folder.rglob("*.py")
    ]
    assert len(named) > 20
    assert [name for name in named if not any(path.endswith(f"/{name}") for path in files)] == []


def test_the_ports_that_the_page_of_the_collector_names_are_its_and_jaegers() -> None:
    page = (ROOT / "docs" / "collector.md").read_text(encoding="utf-8")
    for file, ports in {
        "collector-config.yaml": ("4317", "4318", "14317"),
        "docker-compose.yaml": ("4317", "16686"),
    }.items():
        text = (ROOT / file).read_text(encoding="utf-8")
        assert [port for port in ports if f":{port}" not in text or port not in page] == []
