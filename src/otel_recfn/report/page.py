"""The page: one HTML file that asks nothing of a network.

It has the texts of a trace as JSON, and never runs them.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from otel_recfn.batches.text_tables import time_text
from otel_recfn.report.labels import shorten

ROWS_WITHOUT_SCRIPTS = 30
FRAME_HEIGHT = 720
SCRIPTS = ("page.boxes.js", "page.picture.js", "page.views.js", "page.js")
_PART = re.compile(r"@@(\w+)@@")


def page(title: str, tables: dict[str, Any]) -> str:
    """The text of the HTML file, in ASCII.

    Args:
        title: the page's title.
        tables: the data that ``page.js`` draws, of types that JSON has; with ``flame``,
            ``timeline`` and ``table``.
    """
    # The only one that a browser runs here.
    script = '"use strict"; (() => {\n' + "\n".join(map(_asset, SCRIPTS)) + "})();\n"
    parts = {
        "title": html.escape(title),
        "style": _asset("page.css"),
        "script": script,
        "allowed": f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}",
        "data": in_script(_with_shared_names(tables)),
        "table": _table_without_scripts(tables["table"], tables["notes"]),
    }
    text = _PART.sub(lambda found: parts[found[1]], _asset("page.html"))
    return text.encode("ascii", "xmlcharrefreplace").decode("ascii")


def show_page(text: str) -> str:
    """Write a page to a new temporary file, open it in a browser where there is a screen, and
    return the file's path.
    """
    file, path = tempfile.mkstemp(".html", "otel-recfn-")
    with open(file, "w", encoding="ascii") as opened:
        opened.write(text)
    open_page(path)
    return path


def open_page(path: str | os.PathLike[str]) -> None:
    """Open a file in a browser where there is a screen."""
    if sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        import webbrowser

        webbrowser.open(Path(path).resolve().as_uri())


def in_script(value: Any) -> str:
    """The JSON of a value with escapes for all signs that could end the ``<script>`` around it."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def _asset(name: str) -> str:
    return resources.files("otel_recfn.report").joinpath(name).read_text(encoding="utf-8")


def _with_shared_names(tables: dict[str, Any]) -> dict[str, Any]:
    """The same data with one list of names for all pictures: those that are shown, cut to a
    line, each once.
    """
    numbers: dict[str, int] = {}

    def number(name: str) -> int:
        return numbers.setdefault(shorten(name), len(numbers))

    flame = dict(tables["flame"])
    lanes = dict(tables["timeline"])
    table = dict(tables["table"])
    names = flame.pop("names")
    for picture in (flame, lanes):
        picture["name"] = [number(names[index]) if index >= 0 else -1 for index in picture["name"]]
    table["name"] = [number(name) for name in table.pop("names")]
    return {**tables, "flame": flame, "timeline": lanes, "table": table, "names": list(numbers)}


def in_frame(text: str, table: dict[str, Any], notes: Sequence[str]) -> str:
    """The HTML for a notebook: a page in a frame that can reach nothing outside of it, and a table
    that a style hides.

    A notebook that isn't trusted takes out frames and styles, so that the table is seen there.
    """
    source = text.replace("&", "&amp;").replace("'", "&#39;")
    style = f"width:100%;height:{FRAME_HEIGHT}px;border:1px solid #8884;border-radius:6px"
    tables = _table_without_scripts(table, notes)
    return (
        "<style>.otel-recfn-table{display:none}</style><div"
        f" class='otel-recfn-table'>{tables}</div><iframe sandbox='allow-scripts' title='Profile'"
        f" style='{style}' srcdoc='{source}'></iframe>"
    )


def _table_without_scripts(table: dict[str, Any], notes: Sequence[str]) -> str:
    """The notes, and the names with the most time for themselves, for pages that may run no
    scripts.
    """
    columns = [table[name][:ROWS_WITHOUT_SCRIPTS] for name in ("names", "self", "total", "count")]
    rows = [
        _row("td", shorten(name), *_number_texts(*numbers))
        for name, *numbers in zip(*columns, strict=True)
    ]
    left_out = len(table["names"]) - len(rows) + table["left_out"]
    more = f"<p>{left_out:,} more names are not shown.</p>" if left_out else ""
    said = "".join([f"<p>{html.escape(note)}</p>" for note in notes])
    return (
        f"{said}<table>{_row('th', 'Name', 'Self', 'Total', 'Calls')}{''.join(rows)}</table>{more}"
    )


def _number_texts(own_ns: int, total_ns: int, count: int) -> list[str]:
    return [time_text(own_ns / 1000), time_text(total_ns / 1000), f"{count:,}"]


def _row(tag: str, name: str, *numbers: str) -> str:
    cells = "".join([f"<{tag} style='text-align:right'>{number}</{tag}>" for number in numbers])
    return f"<tr><{tag} style='text-align:left'>{html.escape(name)}</{tag}>{cells}</tr>\n"
