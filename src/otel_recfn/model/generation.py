"""A generation: its tokens, the time until the first one, and the time of each of the others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

GENERATION = "recfn.generation."
"""The prefix of its attributes."""
USAGE = "gen_ai.usage."
"""The prefix of the tokens in OpenTelemetry's conventions, by which backends add them up."""
TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
"""The time to the first token in these conventions, in seconds."""
PHASE = GENERATION + "phase"
PREFILL = "prefill"
"""The attribute of a generation's first call."""


class GenerationStart(NamedTuple):
    """The beginning of a generation, which is known at its first range ``decode``.

    It is no attribute of that range's span: the figures of a generation stand on one span, so that
    a backend's sums don't have them twice.
    """

    prefill_id: int
    """The event id of the first call."""
    first_token_ns: int
    """The time at which the first token was there, in Unix nanoseconds."""
    input_tokens: int
    """The number of tokens of each prompt."""
    batch_size: int


@dataclass(slots=True)
class Generation:
    """The generation of a unit; the sums of several."""

    input_tokens: int = 0
    output_tokens: int = 0
    batch_size: int = 0
    count: int = 0
    """The number of generations that began in the unit. Only a single one has times."""
    first_token_ns: int = 0
    last_token_ns: int = 0
    prefill_ids: list[int] = field(default_factory=list)
    """The event ids of the first calls."""
    is_partial: bool = False
    """Whether it is what follows in a unit of which a part was sent, with the beginning of a
    generation or not.
    """
    earlier_batch_size: int = 0
    """The largest batch size in the parts before, from which tokens may follow in this one."""

    def add(self, number: int, end_ns: int, start: GenerationStart | None) -> None:
        """Add a range ``decode``, which makes the token of that number; the first one has the
        generation's start.
        """
        self.output_tokens += 1
        self.last_token_ns = max(self.last_token_ns, end_ns)
        if start is not None:
            self.count += 1
            self.output_tokens += number - 1
            self.input_tokens += start.input_tokens
            self.batch_size = max(self.batch_size, start.batch_size)
            self.prefill_ids.append(start.prefill_id)
            self.first_token_ns = start.first_token_ns

    def following_part(self) -> Generation:
        """The generation of the unit's next part: each part has what was generated in it."""
        return Generation(is_partial=True, earlier_batch_size=self._largest_batch_size)

    @property
    def _largest_batch_size(self) -> int:
        return max(self.batch_size, self.earlier_batch_size)

    def attributes(self, start_ns: int) -> dict[str, Any]:
        """The attributes for a unit that began at ``start_ns``; none if the first token was there
        before.

        What follows in a unit of which a part was sent has further tokens, and no count and times:
        so the sums over all parts are those of the unit.
        """
        if self.is_partial and self.output_tokens and not self.count:
            return {
                GENERATION + "output_tokens": self.output_tokens,
                **self._usage("output_tokens"),
            }
        if not self.count or self.first_token_ns < start_ns:
            return {}
        sizes = {
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "batch_size": self.batch_size,
        }
        found = {"count": self.count, **sizes}
        if self.count == 1:
            found["time_to_first_token_ns"] = self.first_token_ns - start_ns
            found["time_per_token_ns"] = max(0, self.last_token_ns - self.first_token_ns) // max(
                1, self.output_tokens - 1
            )
        return {
            **{GENERATION + name: value for name, value in found.items()},
            **self._conventional_attributes(start_ns),
        }

    def _conventional_attributes(self, start_ns: int) -> dict[str, Any]:
        """The same by OpenTelemetry's conventions."""
        found = self._usage("input_tokens", "output_tokens")
        if found and self.count == 1:
            found[TIME_TO_FIRST_CHUNK] = (self.first_token_ns - start_ns) / 1e9
        return found

    def _usage(self, *names: str) -> dict[str, Any]:
        """The conventions mean the tokens of all sequences, without padding. In a batch of several
        nobody knows which tokens are padding, so only single sequences have them.
        """
        if self._largest_batch_size != 1:
            return {}
        return {USAGE + name: getattr(self, name) for name in names}
