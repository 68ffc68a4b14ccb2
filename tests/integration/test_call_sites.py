"""``PythonCalls(call_sites=True)``: each call says the line that called it, as Python's own
frames say it meanwhile.
"""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.trace_files import read_trace
from otel_recfn import PythonCalls, profile, record_function
from otel_recfn.model.batch import Event
from otel_recfn.support.code_names import python_call_name

HERE = Path(__file__)
WITH_SITES = PythonCalls(call_sites=True)
sites: list[str] = []
"""By ``tell``: what called it, each time."""


def tell(*_: object) -> int:
    """Note the frame that this was called from, and its line."""
    note(sys._getframe(1))
    return len(sites)


def note(frame: Any) -> None:
    sites.append(
        python_call_name(Path(frame.f_code.co_filename).name, frame.f_lineno, frame.f_code.co_name)
    )


def short(site: str) -> str:
    """Without the folders of the file."""
    place, _, function = site.partition("(")
    return f"{Path(place).name}({function}"


def from_two_lines() -> None:
    tell()
    tell(); tell()  # fmt: skip  # noqa: E702
    for _ in range(3):
        tell(
            tell(),
        )


def recursing(depth: int = 5) -> None:
    tell()
    if depth:
        recursing(
            depth - 1,
        )
    tell()


def resumed() -> Iterator[int]:
    yield tell()
    yield tell()
    yield from (tell() for _ in range(2))


def from_generators() -> None:
    generator = resumed()
    next(generator)
    for _ in generator:
        tell()


def from_c() -> None:
    sorted([1, 2, 3], key=tell)
    list(map(tell, [1, 2]))
    functools.reduce(
        tell,
        [1, 2, 3],
    )


def decorator(function: Callable[[], object]) -> Callable[[], object]:
    @functools.wraps(function)
    def wrapper() -> object:
        return function()

    return wrapper


@decorator
def decorated() -> None:
    note(sys._getframe(1))


def from_decorators() -> None:
    decorated()
    functools.partial(decorated)()


async def awaiting(depth: int) -> None:
    tell()
    await asyncio.sleep(0)
    if depth:
        await awaiting(depth - 1)
    tell()


def from_coroutines() -> None:
    async def both() -> None:
        await asyncio.gather(awaiting(1), awaiting(2))

    asyncio.run(both())


PROGRAMS = (
    from_two_lines,
    recursing,
    from_generators,
    from_c,
    from_decorators,
    from_coroutines,
)


def sites_of(events: list[Event], *functions: str) -> list[str]:
    """Of the calls of these, in the order of their begins."""
    calls = [event for event in events if event.name.rpartition(": ")[2] in functions]
    return [
        event.call_site
        for event in sorted(calls, key=lambda event: event.event_id & ((1 << 40) - 1))
    ]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_call_says_the_line_that_called_it(program: Callable[[], object]) -> None:
    program()  # what is imported at first use
    sites.clear()
    with profile(python_calls=WITH_SITES) as prof:
        program()
    assert sites
    assert [short(site) for site in sites_of(prof.events(), "tell", "decorated")] == sites


def test_a_call_of_a_c_function_does_too() -> None:
    with profile(python_calls=WITH_SITES) as prof:
        len("a")
        [1].index(
            1,
        )
    first = sys._getframe().f_lineno - 4
    named = {event.name: event.call_site for event in prof.events()}
    assert (
        short(named["<built-in function len>"])
        == f"{HERE.name}({first}): test_a_call_of_a_c_function_does_too"
    )
    assert short(named["<built-in method index of list object>"]).startswith(
        f"{HERE.name}({first + 1}): "
    )


def test_what_of_ours_lies_between_calls_nothing() -> None:
    @record_function("ours")
    def in_range() -> None:
        tell()

    with profile(python_calls=WITH_SITES) as prof:
        in_range(); line = sys._getframe().f_lineno  # fmt: skip  # noqa: E702
    [site] = sites_of(prof.events(), "in_range")
    assert short(site) == f"{HERE.name}({line}): test_what_of_ours_lies_between_calls_nothing"


def test_a_chrome_trace_has_it(tmp_path: Path) -> None:
    sites.clear()
    with profile(python_calls=WITH_SITES) as prof:
        from_two_lines()
    prof.export_chrome_trace(tmp_path / "trace.json")
    events = [
        event
        for event in read_trace(tmp_path / "trace.json")["traceEvents"]
        if event["name"].endswith(": tell")
    ]
    assert [
        short(event["args"]["Call site"])
        for event in sorted(events, key=lambda event: event["args"]["Python id"])
    ] == sites
