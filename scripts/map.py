"""Prints what each source file is: the first paragraph of its docstring or leading comment,
folder by folder.
"""

from __future__ import annotations

import ast
from itertools import takewhile
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "otel_recfn"


def first_paragraph(path: Path) -> str:
    """What a file says of itself first, on one line."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        said = ast.get_docstring(ast.parse(text)) or ""
    else:
        comment = takewhile(lambda line: line.startswith("//"), text.splitlines())
        said = "\n".join(line.removeprefix("//").strip() for line in comment)
    return " ".join(said.split("\n\n")[0].split())


def main() -> None:
    """Print the map."""
    files = sorted(path for pattern in ("*.py", "*.[ch]pp") for path in PACKAGE.rglob(pattern))
    for folder in sorted({path.parent for path in files}):
        told = [(path.name, first_paragraph(path)) for path in files if path.parent == folder]
        print(f"\n{folder.relative_to(PACKAGE.parent)}/")
        for name, said in told:
            if said:
                print(f"  {name:24} {said}")


if __name__ == "__main__":
    main()
