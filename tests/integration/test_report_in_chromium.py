"""The report's page in a browser: it opens from disk, asks nothing of a network, and is used
with mouse, keys and fingers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.batches import BASE_NS, MAIN_THREAD, WORKER_THREAD, make_batch
from helpers.chromium import Page, chromium
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventSource, RecordScope, RowKind, make_event_id
from otel_recfn.report.finding import Finding
from otel_recfn.report.process import Process
from otel_recfn.report.report import Report

pytestmark = pytest.mark.one_python

NASTY = "</script><img src=x onerror=\"document.title='ran'\"><script>document.title='ran'</script>"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium(tmp_path_factory.mktemp("chromium")) as page:
        yield page


@pytest.fixture
def page(browser: Page) -> Iterator[Page]:
    browser.size(1200, 800)
    browser.media(prefers_color_scheme="light", prefers_reduced_motion="reduce")
    yield browser
    complaints, browser.complaints = browser.complaints, []
    assert complaints == []


def steps(count: int = 4) -> Batch:
    """So many steps of a module, which runs two operators, and one beside it on another thread."""
    rows: list[dict[str, Any]] = []
    for number in range(count):
        start = BASE_NS + number * 1000
        ids = [make_event_id(1, 4 * number + place) for place in range(1, 5)]
        step = {
            "name": "train",
            "source": EventSource.STEP,
            "step_number": number,
            "scope": RecordScope.USER_SCOPE,
        }
        module = {
            "name": "nn.Module: Linear_0",
            "source": EventSource.MODULE,
            "parent": ids[0],
            "cpu_time_ns": 300,
        }
        for place, (name, begin, end) in enumerate(
            [("aten::addmm", 10, 400), ("aten::relu", 420, 600)], 2
        ):
            times = {"start_ns": start + begin, "end_ns": start + end}
            rows.append({"event_id": ids[place], "parent": ids[1], "name": name, **times})
        rows.append({"event_id": ids[1], "start_ns": start, "end_ns": start + 700, **module})
        rows.append({"event_id": ids[0], "start_ns": start, "end_ns": start + 900, **step})
        load = {"event_id": make_event_id(2, number + 1), "thread": WORKER_THREAD, "name": "load"}
        rows.append({**load, "start_ns": start + 100, "end_ns": start + 300})
    return make_batch(rows)


def opened(page: Page, path: Path, text: str) -> None:
    path.write_text(text)
    page.open(path)


def detail(page: Page) -> str:
    found: str = page.ask("document.getElementById('detail').innerText")
    return found


def press_in(page: Page, picture: str, *keys: str) -> None:
    page.ask(f"document.querySelector('#{picture} .picture').focus()")
    for key in keys:
        page.press(key)


def is_whole(page: Page) -> bool:
    found: bool = page.ask("document.getElementById('whole').disabled")
    return found


def test_it_says_what_was_recorded(page: Page, tmp_path: Path) -> None:
    opened(page, tmp_path / "r.html", Report([Process("p", steps())], "four steps").html())
    assert page.ask("document.querySelector('h1').innerText") == "four steps"
    assert page.ask("document.getElementById('facts').innerText").startswith(
        "20 ranges \u00b7 2 threads \u00b7 3.90"
    )
    assert page.ask("document.getElementById('kinds').innerText").split("\n") == [
        "operator",
        "module",
        "step, block or span of yours",
    ]


def test_threads_that_are_left_out_are_told_and_no_date_that_nobody_knows(
    page: Page, tmp_path: Path
) -> None:
    rows = [
        {"thread": MAIN_THREAD._replace(number=number), "start_ns": 0, "end_ns": 9}
        for number in range(1, 70)
    ]
    opened(page, tmp_path / "r.html", Report([Process("p", make_batch(rows))]).html())
    assert "1970" not in page.ask("document.body.innerText")
    page.ask("document.getElementById('tab-timeline').click()")
    assert "5 threads that did least" in page.ask("document.getElementById('meaning').innerText")


def test_the_flame_graph_by_keys(page: Page, tmp_path: Path) -> None:
    opened(page, tmp_path / "r.html", Report([Process("p", steps())]).html())
    press_in(page, "flame", "ArrowDown", "ArrowDown", "ArrowDown")
    assert "aten::addmm" in detail(page)
    assert "1.56\u00a0\u00b5s" in detail(page)
    assert "train" in detail(page)  # the way to it
    press_in(page, "flame", "ArrowRight", "Enter")
    assert "aten::relu" in detail(page)
    assert not is_whole(page)
    press_in(page, "flame", "Escape")
    assert is_whole(page)


def test_the_flame_graph_by_mouse(page: Page, tmp_path: Path) -> None:
    opened(page, tmp_path / "r.html", Report([Process("p", steps())]).html())
    place = page.ask(
        "(({left, top}) => [left, top])(document.querySelector('#flame"
        " canvas').getBoundingClientRect())"
    )
    page.click(place[0] + 40, place[1] + 4 + 20 + 10)
    assert "nn.Module: Linear_0" in detail(page)
    assert "Worked" in detail(page)
    assert not is_whole(page)
    page.ask("document.getElementById('back').click()")
    assert is_whole(page)


def test_wheel_and_drag(page: Page, tmp_path: Path) -> None:
    opened(page, tmp_path / "r.html", Report([Process("p", steps())]).html())
    page.ask("document.getElementById('tab-timeline').click()")
    place = page.ask(
        "(({left, top}) => [left, top])(document.querySelector('#timeline"
        " canvas').getBoundingClientRect())"
    )
    # The first step, which a look from afar shows at the left.
    x = place[0] + 2
    y = place[1] + 24 + 20 + 10
    page.click(x, y)
    assert "train #0" in detail(page)
    page.turn(x, y, -400)  # scrolls
    assert is_whole(page)
    page.turn(x, y, -400, control=True)
    page.until("!document.getElementById('whole').disabled")
    page.drag(x + 900, y, -890)
    page.click(x + 600, y)
    assert "train #0" not in detail(page)
    page.ask("document.getElementById('whole').click()")
    assert is_whole(page)


def test_a_name_is_found_and_left_again(page: Page, tmp_path: Path) -> None:
    opened(page, tmp_path / "r.html", Report([Process("p", steps())]).html())
    page.press("/")
    page.type("RELU")
    assert page.ask("document.getElementById('matches').innerText").startswith("1 match, ")
    page.press("Enter")
    assert "aten::relu" in detail(page)
    assert not is_whole(page)
    page.press("Escape")
    assert page.ask("document.getElementById('matches').innerText") == ""
    page.press("Escape")
    assert is_whole(page)


def test_the_time_line_goes_from_step_to_step(page: Page, tmp_path: Path) -> None:
    opened(page, tmp_path / "r.html", Report([Process("p", steps())]).html())
    page.ask("document.getElementById('tab-timeline').click()")
    press_in(page, "timeline", "]", "]")
    assert page.ask("document.getElementById('step').innerText") == "train #1 (2 of 4)"
    assert not is_whole(page)
    assert "900\u00a0ns" in detail(page)
    press_in(page, "timeline", "ArrowDown")
    assert "Waited" in detail(page)
    press_in(page, "timeline", "Home", "w", "d")
    assert not is_whole(page)
    press_in(page, "timeline", "Escape", "Escape", "Escape", "Escape")
    assert is_whole(page)


def test_the_table_is_sorted_and_leads_to_the_flame_graph(page: Page, tmp_path: Path) -> None:
    opened(page, tmp_path / "r.html", Report([Process("p", steps())]).html())
    page.ask("document.getElementById('tab-table').click()")
    names = "[...document.querySelectorAll('#table .name')].map((each) => each.innerText)"
    assert page.ask(names)[0] == "aten::addmm"
    page.ask("document.querySelectorAll('#table th button')[0].focus()")
    for down in (False, True, False):  # the focus stays where it is
        page.ask("document.activeElement.click()")
        assert page.ask(names) == sorted(page.ask(names), reverse=down)
    page.ask("document.querySelectorAll('#table .name button')[0].click()")
    assert page.ask("document.getElementById('tab-flame').getAttribute('aria-selected')") == "true"
    assert "aten::addmm" in detail(page)


def test_the_longest_call_and_the_slowest_step_lead_to_the_time_line(
    page: Page, tmp_path: Path
) -> None:
    opened(page, tmp_path / "r.html", Report([Process("p", steps())]).html())
    at = "document.getElementById('tab-timeline').getAttribute('aria-selected')"
    page.ask("document.getElementById('tab-table').click()")
    page.ask("[...document.querySelectorAll('#table td .as-link')].at(1).click()")
    assert page.ask(at) == "true"
    assert "aten::addmm" in detail(page)
    assert not is_whole(page)
    page.ask("document.getElementById('tab-step-list').click()")
    rows = page.ask(
        "[...document.querySelectorAll('#step-list tbody tr')].map((row) => row.innerText)"
    )
    assert len(rows) == 4
    page.ask("document.querySelectorAll('#step-list .as-link')[2].click()")
    assert page.ask(at) == "true"
    assert "train #2" in detail(page)


def test_the_memory_in_use_is_above_the_lanes(page: Page, tmp_path: Path) -> None:
    step = {"source": EventSource.STEP, "event_id": make_event_id(1, 1), "start_ns": BASE_NS}
    report = {"kind": RowKind.MEMORY, "name": "[memory]", "parent": make_event_id(1, 1)}
    rows = [
        {**report, "event_id": make_event_id(1, 2 + number), "nbytes": nbytes}
        for number, nbytes in enumerate([1 << 20, 1 << 22, -(1 << 22)])
    ]
    batch = make_batch([*rows, {**step, "end_ns": BASE_NS + 4000}])
    opened(page, tmp_path / "r.html", Report([Process("p", batch)]).html())
    page.ask("document.getElementById('tab-timeline').click()")
    assert "Memory in use" in page.ask("document.getElementById('meaning').innerText")
    press_in(page, "timeline", "ArrowDown")
    assert "Length" in detail(page)


def test_a_finding_leads_to_its_frame(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finding = Finding(
        "Runs too much", "It does.", 0.4, "Run less.", ("nn.Module: Linear_0", "aten::relu"), True
    )
    monkeypatch.setattr(Report, "findings", [finding])
    opened(page, tmp_path / "r.html", Report([Process("p", steps())]).html())
    assert "40\u00a0%" in page.ask("document.getElementById('findings').innerText")
    assert "Serious" in page.ask("document.getElementById('findings').innerText")
    page.ask("document.querySelector('#findings .show').click()")
    assert "aten::relu" in detail(page)


def test_widths_by_calls(page: Page, tmp_path: Path) -> None:
    opened(page, tmp_path / "r.html", Report([Process("p", steps())]).html())
    select = "document.getElementById('width')"
    page.ask(f"{select}.value = 'calls'; {select}.dispatchEvent(new Event('change'))")
    press_in(page, "flame", "ArrowDown")
    assert "number of calls" in detail(page)
    assert "16, 80.0" in detail(page)


def test_names_never_run(page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = make_batch(
        [{"name": NASTY, "module": NASTY}, {"name": NASTY + "2", "thread": WORKER_THREAD}]
    )
    finding = Finding(NASTY, NASTY, 0.5, NASTY, (NASTY,), True, NASTY)
    monkeypatch.setattr(Report, "findings", [finding])
    opened(
        page,
        tmp_path / "r.html",
        Report([Process(NASTY, batch), Process("q", batch)], "t", [NASTY]).html(),
    )
    page.ask("document.querySelector('#findings .show').click()")
    for tab in ("timeline", "table", "flame"):
        page.ask(f"document.getElementById('tab-{tab}').click()")
        if tab != "table":
            press_in(page, tab, "ArrowDown", "ArrowDown", "Enter")
            assert "onerror" in detail(page)
    assert page.ask("document.title") == "t"
    assert page.ask("document.images.length") == 0
    page.ask(
        "document.body.append(Object.assign(document.createElement('script'), {textContent:"
        " \"document.title='ran'\"}))"
    )
    assert page.ask("document.title") == "t"  # nor would one that got into the page
    assert page.complaints.pop().startswith("Executing inline script violates")


def test_a_phone(page: Page, tmp_path: Path) -> None:
    page.size(360, 740, phone=True)
    opened(
        page,
        tmp_path / "r.html",
        Report([Process("p", steps())], "a_rather_long_name_of_a_file_" * 3).html(),
    )
    for tab in ("flame", "timeline", "table", "step-list"):
        page.ask(f"document.getElementById('tab-{tab}').click()")
        assert page.ask("document.documentElement.scrollWidth") <= 360
    page.ask("document.getElementById('tab-flame').click()")
    page.ask("document.querySelector('#flame canvas').scrollIntoView()")
    place = page.ask(
        "(({left, top}) => [left, top])(document.querySelector('#flame"
        " canvas').getBoundingClientRect())"
    )
    page.tap(place[0] + 40, place[1] + 34)
    page.until("document.getElementById('detail').innerText.includes('Linear_0')")
    assert is_whole(page)
    page.ask("document.querySelector('#detail .show').click()")
    assert not is_whole(page)


def test_dark(page: Page, tmp_path: Path) -> None:
    page.media(prefers_color_scheme="dark", prefers_reduced_motion="reduce")
    opened(page, tmp_path / "r.html", Report([Process("p", steps())]).html())
    background = "getComputedStyle(document.body).backgroundColor"
    assert page.ask(background) == "rgb(20, 23, 28)"
    page.ask("document.getElementById('theme').click()")
    assert page.ask(background) == "rgb(255, 255, 255)"


def a_million() -> Batch:
    """A thousand steps of a thousand ranges."""
    count, inside = 1_000_000, 999
    step = np.arange(count) % (inside + 1) == inside
    number = np.arange(count) // (inside + 1)
    place = np.arange(count) % (inside + 1)
    names = ["", "train", *[f"aten::op{each}" for each in range(200)]]
    template = make_batch([{"thread": MAIN_THREAD}])
    ids = (np.uint64(make_event_id(1, 1)) + np.arange(count, dtype=np.uint64)).astype(np.uint64)
    parent = np.where(step, np.uint64(0), ids[number * (inside + 1) + inside])
    start = BASE_NS + number * 1_000_000 + np.where(step, 0, place * 1000)
    end = np.where(step, start + 1_000_000, start + 900 - (place * 7919) % 800)
    rows = template.take(
        np.zeros(count, np.int64),
        event_id=ids,
        parent=parent,
        start_ns=start,
        end_ns=end,
        names=names,
    )
    return rows.take(
        slice(None),
        name=np.where(step, 1, 2 + place % 200).astype(np.uint32),
        source=np.where(step, int(EventSource.STEP), 0).astype(np.uint8),
        step_number=np.where(step, number, -1),
    )


def test_a_million_ranges_open_in_a_second(page: Page, tmp_path: Path) -> None:
    text = Report([Process("p", a_million())]).html()
    assert len(text) <= 2_000_000
    opened(page, tmp_path / "r.html", text)
    assert page.ask("document.getElementById('facts').innerText").startswith("1,000,000 ranges")
    # the time that the browser's thread worked until it was drawn: others share this machine
    assert page.busy_seconds() < 1
    page.ask("document.getElementById('tab-timeline').click()")
    press_in(page, "timeline", "]", "ArrowDown")
    assert "ranges" in detail(page)
