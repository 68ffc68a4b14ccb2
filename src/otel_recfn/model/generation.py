"""What was generated: how many tokens, how long until the first one and for each of the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

GENERATION = "recfn.generation."
"""How attributes begin that tell of it."""


@dataclass(slots=True)
class Generation:
    """Of one unit; of several, those together."""

    input_tokens: int = 0
    output_tokens: int = 0
    batch_size: int = 0
    count: int = 0
    """How many began in the unit. Only of one are times told."""
    first_token_ns: int = 0
    last_token_ns: int = 0
    prefill_ids: list[int] = field(default_factory=list)
    """The event ids of first calls."""

    def add(self, number: int, end_ns: int, told: Mapping[str, Any]) -> None:
        """A range ``decode``. ``number``: of the token that it makes; ``told``: the attributes of its end."""
        self.output_tokens, self.last_token_ns = self.output_tokens + 1, max(self.last_token_ns, end_ns)
        if GENERATION + "prefill_event_id" in told:
            self.count, self.output_tokens = self.count + 1, self.output_tokens + number - 1
            self.input_tokens += told[GENERATION + "input_tokens"]
            self.batch_size = max(self.batch_size, told[GENERATION + "batch_size"])
            self.prefill_ids.append(told[GENERATION + "prefill_event_id"])
            self.first_token_ns = told[GENERATION + "first_token_unix_ns"]

    def attributes(self, start_ns: int) -> dict[str, Any]:
        """What is told of it; nothing where its first token was there before. ``start_ns``: when the unit began."""
        told = {"count": self.count, "input_tokens": self.input_tokens, "output_tokens": self.output_tokens}
        told["batch_size"] = self.batch_size
        if self.count == 1:
            told["time_to_first_token_ns"] = max(0, self.first_token_ns - start_ns)
            told["time_per_token_ns"] = max(0, self.last_token_ns - self.first_token_ns) // max(1, self.output_tokens - 1)
        return (
            {GENERATION + name: value for name, value in told.items()} if self.count and self.first_token_ns >= start_ns else {}
        )
