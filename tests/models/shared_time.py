"""The time of a run, shared among the threads that work, to be read: moment by moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

LONGEST_PAUSE = 10_000
"""Microseconds."""
OF_A_CLOSURE = ("Calls of modules", "Backward passes")


class Slice(NamedTuple):
    """What ran in a thread, from a microsecond to another."""

    thread: int
    work: str
    """Empty for a block, which holds any work; ``Python`` for a Python function."""
    begin: int
    end: int


def time_by_work(slices: Iterable[Slice]) -> tuple[Counter[str], Fraction]:
    """The time of each work, and that of the whole run.

    The slices of a thread lie in or beside each other.
    """
    by_thread: dict[int, list[Slice]] = {}
    for each in slices:
        by_thread.setdefault(each.thread, []).append(each)
    working = {
        number: ran for number, ran in by_thread.items() if any(_is_work(each) for each in ran)
    }
    counted = list((working or by_thread).values())
    moments = sorted(
        {moment for ran in counted for each in ran for moment in (each.begin, each.end)}
    )
    times = Counter[str]()
    whole = Fraction()
    for begin, end in pairwise(moments):
        open_now = [_open_at(ran, begin) for ran in counted]
        open_now = [enclosing for enclosing in open_now if enclosing]
        length = Fraction(end - begin)
        whole += length if open_now else min(length, LONGEST_PAUSE)
        works = [_work(enclosing) for enclosing in open_now]
        first = [work for work in works if work not in ("", "Python")] or works
        for work in first:
            times[work] += length / len(first)
    return times, whole


def _is_work(each: Slice) -> bool:
    return each.work not in ("", "Python")


def _open_at(ran: Iterable[Slice], moment: int) -> list[Slice]:
    """What is open in a thread, the outermost first."""
    return sorted(
        (each for each in ran if each.begin <= moment < each.end),
        key=lambda each: (each.begin, -each.end),
    )


def _work(enclosing: list[Slice]) -> str:
    """The work of the outermost slice that does any, else of the innermost. In an optimizer's step
    modules and backward passes, which its closure calls, count for themselves."""
    found = ""
    for each in filter(_is_work, enclosing):
        if not found or (found == "Optimizers" and each.work in OF_A_CLOSURE):
            found = each.work
    return found or enclosing[-1].work
