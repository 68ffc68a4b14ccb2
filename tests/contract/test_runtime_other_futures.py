"""Ranges that end with a future of asyncio's or of PyTorch's (source: record_function_ops.cpp)."""

from __future__ import annotations

import asyncio
import concurrent.futures
import sys
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from runtime_helpers import FORMS, Notes, pairs

from otel_recfn.callbacks.operations import (
    call_end_callbacks_on_future,
    record_function_enter,
    record_function_enter_new,
    record_function_exit,
)
from patience import PATIENCE_S

pytestmark = pytest.mark.usefixtures("runtime")


# --- asyncio


def run(main: Callable[[], Any]) -> Any:
    return asyncio.run(asyncio.wait_for(main(), 60))


@FORMS
def test_a_task_ends_its_range_and_gives_its_value(enter: Any, own_notes: Notes) -> None:
    async def main() -> None:
        release = asyncio.Event()

        async def work() -> int:
            await release.wait()
            return 7

        profiled = call_end_callbacks_on_future(enter("load"), asyncio.create_task(work()))
        await asyncio.sleep(0)
        assert own_notes == [("start", "load")]
        release.set()
        assert await profiled == 7
        assert own_notes == pairs("load")

    run(main)


def test_an_asyncio_future_gives_its_error_unchanged() -> None:
    async def main() -> None:
        future = asyncio.get_running_loop().create_future()
        profiled = call_end_callbacks_on_future(record_function_enter_new("load"), future)
        error = ValueError("x")
        future.set_exception(error)
        with pytest.raises(ValueError, match="x") as raised:
            await profiled
        assert raised.value is error

    run(main)


def test_cancelling_the_waiting_task_cancels_the_work_and_ends_the_range(own_notes: Notes) -> None:
    async def main() -> None:
        work = asyncio.create_task(asyncio.Event().wait())
        profiled = call_end_callbacks_on_future(record_function_enter_new("load"), work)

        async def wait() -> None:
            await profiled

        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert work.cancelled()
        assert profiled.cancelled()
        assert own_notes == pairs("load")

    run(main)


def test_a_range_that_was_ended_before_leaves_the_asyncio_future_its_value() -> None:
    async def main() -> None:
        future = asyncio.get_running_loop().create_future()
        handle = record_function_enter("load")
        profiled = call_end_callbacks_on_future(handle, future)
        record_function_exit(handle)
        future.set_result(1)
        assert await profiled == 1

    run(main)


# --- torch


@pytest.mark.torch
@FORMS
def test_a_torch_future_ends_its_range_and_gives_its_value(enter: Any, own_notes: Notes) -> None:
    torch = pytest.importorskip("torch")
    future = torch.futures.Future()
    profiled = call_end_callbacks_on_future(enter("load"), future)
    assert own_notes == [("start", "load")]
    assert not profiled.done()
    future.set_result(value := ["loaded"])
    assert profiled.wait() is value
    assert own_notes == pairs("load")


@pytest.mark.torch
def test_a_torch_future_gives_its_error_unchanged(own_notes: Notes) -> None:
    torch = pytest.importorskip("torch")
    future = torch.futures.Future()
    profiled = call_end_callbacks_on_future(record_function_enter_new("load"), future)
    error = ValueError("x")
    future.set_exception(error)
    with pytest.raises(ValueError, match="x") as raised:
        profiled.wait()
    assert raised.value is error
    assert own_notes == pairs("load")


@pytest.mark.torch
def test_a_range_that_was_ended_before_leaves_the_torch_future_its_value() -> None:
    torch = pytest.importorskip("torch")
    future = torch.futures.Future()
    handle = record_function_enter("load")
    profiled = call_end_callbacks_on_future(handle, future)
    record_function_exit(handle)
    future.set_result(1)
    assert profiled.wait() == 1


def test_without_torch_other_futures_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    future: concurrent.futures.Future[int] = Future()
    profiled = call_end_callbacks_on_future(record_function_enter_new("load"), future)
    future.set_result(7)
    assert profiled.result(PATIENCE_S) == 7
    assert "torch" not in sys.modules
