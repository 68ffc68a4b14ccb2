"""Writes what is said of settings, from the table of settings: that of docs/settings.md and the
docstring of ``profile``.

    python scripts/generate_settings.py

Run it after a change of ``settings/table.py``, and commit what it wrote; a test says when that was
forgotten.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "otel_recfn"
if __name__ == "__main__":
    sys.path.insert(0, str(PACKAGE.parent))

from otel_recfn.settings.setting import Setting  # noqa: E402
from otel_recfn.settings.table import PROFILE_SETTINGS, SETTINGS  # noqa: E402
from otel_recfn.settings.variables import PROCESS_VARIABLES  # noqa: E402

HEAD = "| keyword | default | meaning |\n|---|---|---|\n"
WIDTH = 100
"""Of a line of code."""


def files() -> dict[Path, str]:
    """What is written where: each file as it is, but for its table or the arguments in its first
    docstring that has some.
    """
    page = ROOT / "docs" / "settings.md"
    profiling = PACKAGE / "profiling.py"
    return {
        page: with_table(page.read_text(encoding="utf-8")),
        profiling: with_arguments(profiling.read_text(encoding="utf-8"), PROFILE_SETTINGS),
    }


def with_table(page: str) -> str:
    """The page with its table as the settings say."""
    rows = [_row(each.name, each.default_in_words, each.meaning) for each in SETTINGS]
    rows += [_row(variable, *words) for variable, words in PROCESS_VARIABLES.items()]
    before, after = re.split(re.escape(HEAD) + r"(?:\|.*\n)*", page)
    return "".join([before, HEAD, *rows, after])


def with_arguments(module: str, settings: Iterable[Setting]) -> str:
    """The module with a line of arguments for each setting."""
    before, heading, rest = module.partition("Args:\n")
    indent = before[before.rindex("\n") + 1 :] + " " * 4
    arguments = "\n".join([_argument(each, indent) for each in settings])
    return before + heading + arguments + rest[rest.index("\n\n") :]


def _row(name: str, *words: str) -> str:
    return f"| {' | '.join([f'`{name}`', *words])} |\n"


def _argument(setting: Setting, indent: str) -> str:
    text = (
        f"{setting.name}: {setting.meaning.replace('`', '``')}. Default:"
        f" {setting.default_in_words}."
    )
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + " " * 4,
        break_long_words=False,
        break_on_hyphens=False,
    )


if __name__ == "__main__":
    for path, text in files().items():
        if path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"written: {path.relative_to(ROOT)}")
