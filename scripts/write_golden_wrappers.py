"""Accepts what the generator writes now as what ``tests/unit/codegen/test_written_modules.py`` expects."""

from __future__ import annotations

from pathlib import Path

from otel_recfn.codegen.modules import Request, generate

FOLDER = Path(__file__).parents[1] / "tests" / "unit" / "codegen"
REQUESTS = {
    "for_torch": Request(FOLDER / "handful.yaml"),
    "for_python": Request(FOLDER / "handful.yaml", "handful_kernels:FUNCTIONS", 2),
}

for name, request in REQUESTS.items():
    folder = FOLDER / "golden" / name
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in generate(request).texts.items():
        (folder / f"{file}.txt").write_text(text, encoding="utf-8")
