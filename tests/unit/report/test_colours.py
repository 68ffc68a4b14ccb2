"""The page's colours: told apart by who sees colours otherwise, and names are readable on them."""

from __future__ import annotations

import re
from importlib import resources
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from otel_recfn.report.recording import KINDS

pytestmark = pytest.mark.one_python

Colour = NDArray[np.float64]
SEEN = {
    "by most": np.eye(3),
    "without red": np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]),
    "without green": np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]),
    "without blue": np.array([[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]]),
}
"""Of linear red, green and blue: Machado, Oliveira and Fernandes, 2009."""
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = np.array([0.9505, 1.0, 1.089])
LEAST_DISTANCE = 10.0
"""In CIE Lab; about 2 can just be seen side by side."""
FAINTEST = 0.74
"""Of a colour over the paper: names have slightly different shades."""


def themes() -> dict[str, dict[str, Colour]]:
    """The colours of each, linear."""
    text = resources.files("otel_recfn.report").joinpath("page.css").read_text()
    light, dark = re.findall(r"--paper.*?\}", text, re.DOTALL)[:2]
    return {"light": _colours(light), "dark": _colours(dark)}


def _colours(text: str) -> dict[str, Colour]:
    found = re.findall(r"--([\w-]+): #([0-9a-f]{6})\b", text)
    return {name: _linear(np.array([int(code[at : at + 2], 16) for at in (0, 2, 4)]) / 255) for name, code in found}


def _linear(colour: Colour) -> Colour:
    return np.where(colour <= 0.04045, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)


def _encoded(linear: Colour) -> Colour:
    return np.where(linear <= 0.0031308, linear * 12.92, 1.055 * linear ** (1 / 2.4) - 0.055)


def lab(linear: Colour) -> Colour:
    """Where a colour is for the eye."""
    ratio = TO_XYZ @ np.clip(linear, 0, 1) / WHITE
    x, y, z = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(one: Colour, other: Colour) -> float:
    """As the Web Content Accessibility Guidelines measure it."""
    dark, light = sorted([float(TO_XYZ[1] @ each) for each in (one, other)])
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("seen", SEEN)
def test_kinds_are_told_apart(theme: str, seen: str) -> None:
    colours = [lab(SEEN[seen] @ themes()[theme][f"k{kind}"]) for kind in range(len(KINDS))]
    pairs = zip(combinations(KINDS, 2), combinations(colours, 2), strict=True)
    distances = {names: round(float(np.linalg.norm(one - other)), 1) for names, (one, other) in pairs}
    assert not {names: distance for names, distance in distances.items() if distance < LEAST_DISTANCE}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_names_are_readable(theme: str) -> None:
    colours = themes()[theme]
    paper = _encoded(colours["paper"])
    for kind in range(len(KINDS)):
        full = _encoded(colours[f"k{kind}"])
        for shown in (full, FAINTEST * full + (1 - FAINTEST) * paper):
            assert contrast(_linear(shown), colours["on-kind"]) >= 4.5
    assert contrast(colours["packed"], colours["on-packed"]) >= 4.5
    for text in ("ink", "quiet", "link", "serious"):
        assert contrast(colours["paper"], colours[text]) >= 4.5
