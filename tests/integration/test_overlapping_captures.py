"""Captures begin and end while threads run ranges, and spans inside these: no orphan, no parent
elsewhere.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from helpers.example_counts import SOAK
from otel_recfn import OtelRecordFunctionInstrumentor, profile, record_function

RANGE, SPAN, PROFILE, SWITCH, END, END_OLDEST_RANGE = "RSPIxo"


class Program:
    """Opens and ends what the letters say: the last that was opened first, but for the
    instrumentation and oldest ranges.
    """

    def __init__(self, instrumentor: OtelRecordFunctionInstrumentor) -> None:
        self.exporter = InMemorySpanExporter()
        self.instrumentor = instrumentor
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def run(self, letters: str) -> None:
        opened: list[tuple[str, ExitStack]] = []
        for letter in letters:
            if letter == SWITCH:
                self.switch()
            elif letter == END_OLDEST_RANGE:
                for oldest in [each for each in opened if each[0] == RANGE][:1]:
                    opened.remove(oldest)
                    oldest[1].close()
            elif letter != END:
                opened.append((letter, ExitStack()))
                opened[-1][1].enter_context(self.made(letter))
            elif opened:
                opened.pop()[1].close()
        while opened:
            opened.pop()[1].close()
        if self.instrumentor.is_instrumented_by_opentelemetry:
            self.switch()

    def made(self, letter: str) -> Any:
        if letter == SPAN:
            return self.provider.get_tracer("program").start_as_current_span("span")
        return record_function("range") if letter == RANGE else profile()

    def switch(self) -> None:
        if self.instrumentor.is_instrumented_by_opentelemetry:
            self.instrumentor.uninstrument()
        else:
            self.instrumentor.instrument(
                tracer_provider=self.provider, span_budget=None, roots_per_second=None
            )

    def orphans(self) -> list[str]:
        spans = self.exporter.get_finished_spans()
        there = {(span.context.trace_id, span.context.span_id) for span in spans}
        return [
            span.name
            for span in spans
            if span.parent and (span.parent.trace_id, span.parent.span_id) not in there
        ]


@pytest.fixture
def program(instrumentor: OtelRecordFunctionInstrumentor) -> Iterator[Program]:
    made = Program(instrumentor)
    yield made
    made.provider.shutdown()


@pytest.mark.parametrize(
    "letters",
    [
        "PRIRS",
        "PRIRRSxS",
        "PRIRxRS",
        "PRPIxRS",
        "PRISRS",
        "PRRIRSxxRS",
        "PRIRoS",
        "PRIRRoS",
        "PRRIRRoooS",
    ],
)
def test_where_the_outermost_range_is_older_than_the_instrumentation(
    program: Program, letters: str
) -> None:
    program.run(letters)
    assert program.orphans() == []


def test_a_generators_range_that_is_older_than_the_instrumentation(program: Program) -> None:
    """It is entered again with each step."""

    @record_function("older")
    def steps() -> Iterator[None]:
        yield
        with program.made(SPAN):
            yield

    with profile():
        generator = steps()
        next(generator)
        program.switch()
        next(generator)
        generator.close()
    program.switch()
    assert [span.name for span in program.exporter.get_finished_spans()] == ["span"]
    assert program.orphans() == []


def test_in_any_program(instrumentor: OtelRecordFunctionInstrumentor) -> None:
    for seed in range(100 * SOAK):
        choice = random.Random(seed)
        letters = "".join(choice.choices("RRRSSPPIIxxoo", k=choice.randrange(3, 12)))
        program = Program(instrumentor)
        program.run(letters)
        program.provider.shutdown()
        assert program.orphans() == [], letters
