"""A disk that doesn't take what is written holds up neither the program nor other sinks; what is
lost is counted and told.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from helpers.forked_work import in_child
from helpers.timeouts import PATIENCE_S
from helpers.trace_files import events_in, names_in, names_in_cut, read_trace
from otel_recfn import InMemorySink, OtelRecordFunctionInstrumentor, record_function


class Disk:
    """Takes what is written, unless it is blocked."""

    def __init__(self) -> None:
        self.takes = threading.Event()
        self.is_asked = threading.Event()
        self.takes.set()

    def block(self) -> None:
        self.takes.clear()
        self.is_asked.clear()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    written = os.pwrite

    def pwrite(descriptor: int, data: Any, offset: int) -> int:
        disk.is_asked.set()
        disk.takes.wait()
        return written(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    yield disk
    disk.takes.set()


@pytest.fixture
def instrumentor() -> Iterator[OtelRecordFunctionInstrumentor]:
    instrumentor = OtelRecordFunctionInstrumentor()
    yield instrumentor
    instrumentor.uninstrument()


def record(count: int) -> None:
    for _ in range(count):
        with record_function("work"):
            pass


def record_until(disk: Disk, instrumentor: OtelRecordFunctionInstrumentor) -> None:
    """Something, and wait until the blocked disk is to take it."""
    record(1)
    instrumentor.flush(0.0)
    assert disk.is_asked.wait(PATIENCE_S)


def start(
    instrumentor: OtelRecordFunctionInstrumentor, path: Path, **settings: Any
) -> InMemorySink:
    beside = InMemorySink(max_events=1_000_000)
    instrumentor.instrument(
        chrome_trace=path, sinks=[beside], tracer_provider=TracerProvider(), **settings
    )
    return beside


def drained(instrumentor: OtelRecordFunctionInstrumentor, beside: InMemorySink, count: int) -> bool:
    """Whether another sink gets what is recorded although the file is not written."""
    for _ in range(100):
        assert not instrumentor.flush(0.05)
        if len(beside.events()) >= count:
            return True
    return False


def test_others_get_what_is_recorded_while_the_disk_is_blocked(
    disk: Disk, instrumentor: OtelRecordFunctionInstrumentor, tmp_path: Path
) -> None:
    beside = start(instrumentor, tmp_path / "trace.json")
    disk.block()
    record_until(disk, instrumentor)
    record(1000)
    assert drained(instrumentor, beside, 1001)
    disk.takes.set()
    assert instrumentor.flush(PATIENCE_S)
    assert names_in(tmp_path / "trace.json") == ["work"] * 1001
    instrumentor.uninstrument()
    assert "lost" not in read_trace(tmp_path / "trace.json")


def test_what_does_not_fit_is_counted_and_told(
    disk: Disk,
    instrumentor: OtelRecordFunctionInstrumentor,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("otel_recfn.instrumentor.FILE_QUEUE_BYTES", 400_000)
    beside = start(instrumentor, tmp_path / "trace.json")
    disk.block()
    record_until(disk, instrumentor)
    for number in range(1, 6):
        record(500)
        assert drained(instrumentor, beside, 1 + 500 * number)
    dropped = instrumentor.counters()["chrome_trace.dropped.queue_full"]
    assert 0 < dropped < 2500
    disk.takes.set()
    with caplog.at_level(logging.WARNING, "otel_recfn"):
        instrumentor.uninstrument()
    assert f"otel-recfn lost chrome_trace.dropped.queue_full={dropped}" in caplog.text
    assert instrumentor.counters()["recorded"] == 2501
    assert len(events_in(tmp_path / "trace.json", "X")) == 2501 - dropped
    assert read_trace(tmp_path / "trace.json")["lost"] == dropped


def test_an_end_does_not_wait_for_it_and_says_what_is_missing(
    disk: Disk,
    instrumentor: OtelRecordFunctionInstrumentor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("otel_recfn.instrumentor.STOP_SECONDS", 0.2)
    beside = start(instrumentor, tmp_path / "trace.json")
    record(3)
    assert instrumentor.flush(PATIENCE_S)
    disk.block()
    record_until(disk, instrumentor)
    record(10)
    assert drained(instrumentor, beside, 14)
    instrumentor.uninstrument()
    assert instrumentor.counters()["chrome_trace.dropped.shutdown"] == 11
    assert names_in_cut(tmp_path / "trace.json") == ["work"] * 3


def test_a_child_that_is_forked_meanwhile_writes_its_own(
    disk: Disk, instrumentor: OtelRecordFunctionInstrumentor, tmp_path: Path
) -> None:
    start(instrumentor, tmp_path / "trace.json")
    disk.block()
    record_until(disk, instrumentor)

    def child() -> None:
        disk.takes = threading.Event()
        disk.takes.set()
        record(2)
        assert instrumentor.flush(PATIENCE_S)
        assert names_in(tmp_path / f"trace.pid{os.getpid()}.json") == ["work"] * 2

    in_child(child)
    disk.takes.set()
    assert instrumentor.flush(PATIENCE_S)
    assert names_in(tmp_path / "trace.json") == ["work"]
