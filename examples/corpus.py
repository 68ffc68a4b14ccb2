"""The text that the examples learn: sums and small sentences, made here, one character a token."""

from __future__ import annotations

import random

import torch
from torch.utils.data import Dataset

ARTICLES = ("the", "a", "every")
ANIMALS = ("cat", "dog", "owl", "fox", "hen")
VERBS = ("sees", "hears", "likes", "follows")
LETTERS = "\n abcdefghijklmnopqrstuvwxyz0123456789+=."
INDEX = {letter: number for number, letter in enumerate(LETTERS)}


def make_text(lines: int, seed: int) -> str:
    """As many lines, half of them sums, half of them sentences."""
    dice = random.Random(seed)
    return "".join(_sum(dice) if dice.random() < 0.5 else _sentence(dice) for _ in range(lines))


def _sum(dice: random.Random) -> str:
    left, right = dice.randrange(50), dice.randrange(50)
    return f"{left}+{right}={left + right}\n"


def _sentence(dice: random.Random) -> str:
    subject, target = (f"{dice.choice(ARTICLES)} {dice.choice(ANIMALS)}" for _ in range(2))
    return f"{subject} {dice.choice(VERBS)} {target}.\n"


def encode(text: str) -> torch.Tensor:
    """Letters to token numbers; what the alphabet lacks becomes a space."""
    return torch.tensor([INDEX.get(letter, INDEX[" "]) for letter in text], dtype=torch.long)


def decode(tokens: torch.Tensor) -> str:
    """Token numbers to letters."""
    return "".join(LETTERS[token] for token in tokens.tolist())


class Windows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Random windows of a text, each with the same window one letter further: what to predict.

    Item n is the same in every process and run with the same seed, whichever worker makes it.
    """

    def __init__(self, text: str, length: int, count: int, seed: int) -> None:
        self._tokens = encode(text)
        self._length, self._count, self._seed = length, count, seed

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, item: int) -> tuple[torch.Tensor, torch.Tensor]:
        start = random.Random(self._seed * 1_000_003 + item).randrange(
            len(self._tokens) - self._length
        )
        window = self._tokens[start : start + self._length + 1]
        return window[:-1], window[1:]
