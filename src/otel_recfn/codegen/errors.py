"""What is wrong with a schema file, and where."""

from __future__ import annotations

from typing import NamedTuple

from otel_recfn.model.errors import RecfnError


class Location(NamedTuple):
    """An entry of a schema file."""

    file: str
    line: int
    operator: str = ""
    """Its schema's text up to the arguments, as far as it could be read."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.operator}" if self.operator else f"{self.file}:{self.line}"


class SchemaError(RecfnError):
    """An operator schema that can't be read."""

    def __init__(self, location: Location, message: str) -> None:
        super().__init__(f"{location}: {message}")
        self.location = location


class GeneratorError(RecfnError):
    """The generator lacks something that it needs."""
