"""The page: one HTML file that asks nothing of a network. What comes from a trace stands in it as JSON, and is never run."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
import sys
import tempfile
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from otel_recfn.batches.averages import time_text

LONGEST_NAME = 240
ROWS_WITHOUT_SCRIPTS = 40
SCRIPTS = ("page.boxes.js", "page.picture.js", "page.views.js", "page.js")
_PART = re.compile(r"@@(\w+)@@")


def page(title: str, shown: dict[str, Any]) -> str:
    """The file's text, in ASCII.

    Args:
        title: of the page.
        shown: what ``page.js`` draws, as JSON can say it; with ``flame``, ``timeline`` and ``table``.
    """
    script = '"use strict"; (() => {\n' + "\n".join(map(_file, SCRIPTS)) + "})();\n"  # the only one that a browser runs here
    parts = {
        "title": html.escape(title),
        "style": _file("page.css"),
        "script": script,
        "allowed": f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}",
        "data": in_script(_with_short_names(shown)),
        "table": _table(shown["table"]),
    }
    text = _PART.sub(lambda found: parts[found[1]], _file("page.html"))
    return text.encode("ascii", "xmlcharrefreplace").decode("ascii")


def show_page(text: str) -> str:
    """Write it to a new temporary file, open it in a browser where there is a screen, and return the file's path."""
    file, path = tempfile.mkstemp(".html", "otel-recfn-")
    with open(file, "w", encoding="ascii") as opened:
        opened.write(text)
    open_page(path)
    return path


def open_page(path: str | os.PathLike[str]) -> None:
    """Open it in a browser where there is a screen."""
    if sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        import webbrowser

        webbrowser.open(Path(path).resolve().as_uri())


def in_script(value: Any) -> str:
    """JSON that can stand in a ``<script>`` and end nothing there, whatever names say."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def _file(name: str) -> str:
    return resources.files("otel_recfn.report").joinpath(name).read_text(encoding="utf-8")


def _with_short_names(shown: dict[str, Any]) -> dict[str, Any]:
    """Only names that are shown, each once, and none longer than a line."""
    numbers: dict[str, int] = {}

    def number(name: str) -> int:
        short = name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 3] + "..."
        return numbers.setdefault(short, len(numbers))

    flame, lanes, table = dict(shown["flame"]), dict(shown["timeline"]), dict(shown["table"])
    names = flame.pop("names")
    for picture in (flame, lanes):
        picture["name"] = [number(names[index]) if index >= 0 else -1 for index in picture["name"]]
    table["name"] = [number(name) for name in table.pop("names")]
    return {**shown, "flame": flame, "timeline": lanes, "table": table, "names": list(numbers)}


def _table(table: dict[str, Any]) -> str:
    """For pages that may run no scripts."""
    columns = [table[name][:ROWS_WITHOUT_SCRIPTS] for name in ("names", "self", "total", "count")]
    return "".join([_table_row(*row) for row in zip(*columns, strict=True)])


def _table_row(name: str, own_ns: int, total_ns: int, count: int) -> str:
    cells = [html.escape(name[:LONGEST_NAME]), time_text(own_ns / 1000), time_text(total_ns / 1000), f"{count:,}"]
    return f"<tr>{''.join([f'<td>{cell}</td>' for cell in cells])}</tr>\n"
