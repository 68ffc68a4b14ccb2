"""What became of one attempt to send a request, as OTLP 1.11 tells retryable answers from others."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Protocol

TOO_LARGE = "where the request was too large, set export_request_bytes to what servers and proxies take (nginx: 1 MiB)"


class Verdict(Enum):
    """What is to be done with the request."""

    TAKEN = "taken"
    """Nothing: the server has it, but for what it says that it rejected."""
    AGAIN = "again"
    """Send the same bytes again, later."""
    REFUSED = "refused"
    """Nothing: sending it again would not help."""


class Outcome(NamedTuple):
    """Of one attempt."""

    verdict: Verdict
    message: str = ""
    """As ``safe_text`` says it."""
    rejected: int = 0
    """Spans of a taken request that the server did not take."""
    delay_s: float | None = None
    """How long the server wants to be left alone; None where it doesn't say."""


class Transport(Protocol):
    """Sends requests to one place."""

    where: str
    """For messages."""
    hidden: tuple[str, ...]
    """What is to be in no message."""
    encoding: str
    """How bodies are to be compressed; empty where they aren't."""
    concurrent: int
    """How many requests it sends at once."""

    def send(self, body: bytes) -> Outcome:
        """One attempt. What it raises counts as refused."""

    def close(self) -> None:
        """Nothing is sent any more."""


class OpensTransports(Protocol):
    """Somewhere to send requests to."""

    def __call__(self) -> Transport:
        """Open it, in this process."""

    def close(self) -> None:
        """It was never opened, and will not be."""

    def after_fork_in_child(self) -> OpensTransports:
        """The same in a forked child."""
