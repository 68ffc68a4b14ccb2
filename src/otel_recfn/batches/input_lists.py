"""The columns ``shapes`` and ``dtypes`` as lists: each distinct text is parsed once, for whoever asks.

A text that is no JSON list counts as a list of itself, without shapes: an unexpected text must not make us lose a batch.
"""

from __future__ import annotations

import json
from functools import lru_cache

from otel_recfn.support.texts import json_value, text_of_utf8

MAX_KEPT = 4096
"""Programs have few distinct texts; those that were asked for last are kept."""


@lru_cache(MAX_KEPT)
def element_texts(text: str) -> tuple[str, ...]:
    """The elements, each as a text that UTF-8 can hold: a string as it is, a shape as ``[2, 3]``."""
    elements = _parsed(text)
    if elements is None:
        return (text_of_utf8(text),)
    return tuple(text_of_utf8(one) if isinstance(one, str) else json_value(one) for one in elements)


def flat_shapes(text: str) -> tuple[tuple[int, ...], ...]:
    """The shape of each tensor; nothing for a list of tensors."""
    return tuple(_flat(shape) for shape in _parsed(text) or ())


@lru_cache(MAX_KEPT)
def _parsed(text: str) -> tuple[object, ...] | None:
    try:
        elements = json.loads(text)
    except ValueError:  # no JSON
        return None
    return tuple(elements) if isinstance(elements, list) else None


def _flat(shape: object) -> tuple[int, ...]:
    return tuple(shape) if isinstance(shape, list) and all(isinstance(size, int) for size in shape) else ()
