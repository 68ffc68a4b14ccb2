"""What is kept of what the program says (``LIMITS``), and what doesn't fit: dropped, counted,
nesting kept.
"""

from __future__ import annotations

import json
import threading
import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import source_calls
from helpers.example_counts import examples
from helpers.recording_helpers import (
    ASYNC,
    LIMITS,
    SOURCE,
    USER,
    Capture,
    Worker,
    check_laws,
    reset,
    workers_of,
)
from helpers.timeouts import PATIENCE_S
from otel_recfn import record_function
from otel_recfn.recording.recorder import Recorder
from otel_recfn.recording.types import PROFILE_BUFFER_BYTES

TEXTS = st.text(alphabet=st.characters(exclude_categories=[]), max_size=40)
LONG_TEXTS = st.builds(
    lambda character, count, end: character * count + end,
    st.sampled_from("aé€\U0001f600\ud83e"),
    st.integers(200, 2100),
    TEXTS,
)


on_one_recorder = examples(60)


def kept(text: str, most: int) -> str:
    """The characters that fit, lone surrogates as the text that tells them."""
    escaped = "".join(
        f"\\u{ord(each):04x}" if 0xD800 <= ord(each) < 0xE000 else each for each in text
    )
    size, characters = 0, []
    for character in escaped:
        size += len(character.encode())
        if size > most:
            break
        characters.append(character)
    return "".join(characters)


@on_one_recorder
@given(text=TEXTS | LONG_TEXTS)
def test_names_modules_and_devices(recorder: Recorder, text: str) -> None:
    reset(recorder)
    capture = Capture(recorder)
    with record_function(text):
        pass
    capture.end(capture.begin("module", module=text))
    source_calls.mark(text)
    rows = capture.finish()
    assert [rows[0].name, rows[1].module, rows[2].name] == [
        kept(text, LIMITS["MAX_NAME_BYTES"])
    ] * 3


@on_one_recorder
@given(text=TEXTS | LONG_TEXTS)
def test_errors(recorder: Recorder, workers: list[Worker], text: str) -> None:
    reset(recorder)
    capture = Capture(recorder)
    capture.end(capture.begin("here"), text)
    there = capture.begin("there")
    workers[0].call(capture.end, there, text)
    here_row, there_row = capture.finish()
    assert here_row.error == kept(text, LIMITS["MAX_ERROR_BYTES"])
    assert there_row.error == kept(text, LIMITS["MAX_REMOTE_ERROR_BYTES"])


@on_one_recorder
@given(message=TEXTS | LONG_TEXTS)
def test_exceptions(recorder: Recorder, message: str) -> None:
    reset(recorder)
    capture = Capture(recorder)
    with pytest.raises(ValueError), record_function("fails"):  # noqa: PT011 - any message
        raise ValueError(message)
    [row] = capture.finish()
    text = f"ValueError: {message}" if message else "ValueError"
    assert row.error == kept(text[:1024], LIMITS["MAX_ERROR_BYTES"])


@pytest.mark.one_python
@pytest.mark.parametrize(
    ("flags", "most"), [(0, LIMITS["MAX_DEPTH"]), (int(ASYNC), LIMITS["MAX_DEPTH_FOR_ASYNC"])]
)
def test_open_ranges_of_a_thread(
    capture: Capture, workers: list[Worker], flags: int, most: int
) -> None:
    ids = workers[0].call(lambda: [capture.begin(flags=flags) for _ in range(most + 3)])
    assert [bool(event_id) for event_id in ids] == [True] * most + [False] * 3
    assert capture.counters().dropped == 3
    workers[0].call(lambda: [capture.end(event_id) for event_id in reversed(ids)])
    assert workers[0].call(capture.begin, "after", flags)


@pytest.mark.one_python
def test_ends_on_other_threads(capture: Capture, workers: list[Worker]) -> None:
    too_many = 5

    def begin(count: int) -> list[int]:
        return [capture.begin(flags=int(ASYNC)) for _ in range(count)]

    ids = []
    while len(ids) < LIMITS["MAX_REMOTE_ENDS"] + too_many:
        count = min(LIMITS["MAX_DEPTH_FOR_ASYNC"], LIMITS["MAX_REMOTE_ENDS"] + too_many - len(ids))
        thread = Worker()
        ids += thread.call(begin, count)
        thread.stop()
    workers[0].call(lambda: [capture.end(event_id) for event_id in ids])
    assert capture.counters().lost_ends == too_many
    rows: list[Any] = capture.finish()
    assert len(rows) == len(ids)
    assert len(capture.rows()) == len(ids)


def fail(message: str = "no") -> None:
    raise ValueError(message)


def test_the_ranges_around_it_say_their_part_of_the_way(capture: Capture) -> None:
    # Not one statement, as these are two ranges.
    with pytest.raises(ValueError, match="no"), record_function("outer"):  # noqa: SIM117
        with record_function("inner"):
            fail()
    inner, outer = capture.finish()
    assert inner.stacktrace == outer.stacktrace != ""


@examples(30)
@given(text=TEXTS | LONG_TEXTS, stacktrace=TEXTS | st.builds(lambda text: text * 9, LONG_TEXTS))
def test_what_is_kept_of_it(
    recorder: Recorder, workers: list[Worker], text: str, stacktrace: str
) -> None:
    reset(recorder)
    capture = Capture(recorder)
    source_calls.end(capture.begin("here"), text, stacktrace=stacktrace)
    there = capture.begin("there")
    workers[0].call(lambda: source_calls.end(there, text, stacktrace=stacktrace))
    here_row, there_row = capture.finish()
    assert here_row.stacktrace == (kept(stacktrace, LIMITS["MAX_STACKTRACE_BYTES"]) if text else "")
    assert there_row.stacktrace == ""


@pytest.mark.parametrize(
    "size", [LIMITS["MAX_ATTRIBUTES_BYTES"], LIMITS["MAX_ATTRIBUTES_BYTES"] + 1]
)
def test_attributes_are_kept_whole_or_not_at_all(capture: Capture, size: int) -> None:
    text = json.dumps({"reason": "x" * (size - len('{"reason": ""}'))})
    source_calls.end(capture.begin(), attributes=text)
    assert [row.attributes for row in capture.finish()] == [
        text if size == LIMITS["MAX_ATTRIBUTES_BYTES"] else ""
    ]


def test_attributes_of_a_range_that_ends_elsewhere_are_not(
    capture: Capture, workers: list[Worker]
) -> None:
    event_id = capture.begin()
    workers[0].call(lambda: source_calls.end(event_id, attributes='{"id": "0/1"}'))
    assert [row.attributes for row in capture.finish()] == [""]


def test_nothing_that_the_frames_held_lives_longer(capture: Capture) -> None:
    class Held:
        pass

    def hold() -> weakref.ref[Held]:
        held = Held()
        reference = weakref.ref(held)
        try:
            with record_function("holds"):
                fail()
        except ValueError:
            pass
        return reference

    assert hold()() is None
    assert [row.name for row in capture.finish()] == ["holds"]


TINY = 4096  # 10,000 ranges overfill it


@pytest.fixture
def tiny(recorder: Recorder) -> Capture:
    return Capture(recorder, buffer_bytes=TINY)


def fill(capture: Capture, count: int = 10_000) -> list[int]:
    ids = []
    for index in range(count):
        ids.append(capture.begin(f"{index % 3}"))
        capture.end(ids[-1])
    return ids


@pytest.mark.one_python
def test_a_thread_that_recorded_before_may_fill_what_is_allowed_now(
    recorder: Recorder, workers: list[Worker]
) -> None:
    tiny = Capture(recorder, buffer_bytes=TINY)
    workers[0].call(fill, tiny)
    tiny.finish()
    capture = Capture(recorder, buffer_bytes=1 << 20)
    workers[0].call(fill, capture, 20_000)
    assert len(capture.finish()) == 20_000
    assert capture.counters().dropped == 0


def test_a_profile_loses_none_of_many_ranges_that_nobody_drains_meanwhile(
    recorder: Recorder,
) -> None:
    capture = Capture(recorder, buffer_bytes=PROFILE_BUFFER_BYTES)
    with workers_of(1) as [worker]:
        worker.call(fill, capture, 300_000)  # more than 8 MiB
    recorder.stop()
    assert len(recorder.drain(close_open=True)) == 300_000
    assert capture.counters().dropped == 0


def test_the_end_of_a_dropped_range_ends_nothing(tiny: Capture, workers: list[Worker]) -> None:
    def overfill() -> list[int]:
        ids = [tiny.begin(f"{depth}") for depth in range(900)]
        for event_id in reversed(ids):
            tiny.end(event_id)
        return ids

    ids = workers[0].call(overfill)
    tiny.finish()
    recorded = [event_id for event_id in ids if event_id]
    assert 0 < len(recorded) < len(ids)
    assert [row.event_id for row in tiny.rows()] == recorded[::-1]
    assert [row.parent for row in tiny.rows()] == [*recorded[-2::-1], 0]
    check_laws(tiny.rows(), tiny.opened())


@pytest.mark.one_python
def test_waiting_tasks_leave_room_for_the_ranges_of_the_one_that_runs(capture: Capture) -> None:
    tasks = [capture.begin("task", flags=ASYNC) for _ in range(LIMITS["MAX_DEPTH"])]
    nested = [capture.begin("nested") for _ in range(100)]
    assert 0 in tasks
    assert all(nested)
    for event_id in reversed(tasks + nested):
        capture.end(event_id)


def test_new_names_and_shapes_fill_a_buffer_with_their_ranges(
    recorder: Recorder, workers: list[Worker]
) -> None:
    capture = Capture(recorder, buffer_bytes=1 << 16)

    def work() -> dict[int, str]:
        ids: dict[int, str] = {}
        for index in range(500):
            shapes = {"shapes": f"[[{index}]]" + " " * 500, "dtypes": '["float32"]'}
            ids[source_calls.begin(f"{index}", USER, SOURCE, **shapes)] = f"{index}"  # type: ignore[arg-type]
            source_calls.end(max(ids))
        return ids

    ids = workers[0].call(work)
    capture.finish()
    assert 0 < len(capture.rows()) == 500 - capture.counters().dropped < 500
    assert {row.event_id: row.name for row in capture.rows()} == {
        number: name for number, name in ids.items() if number
    }
    assert all(row.shapes.strip() == f"[[{row.name}]]" for row in capture.rows())


def test_a_thread_that_fills_a_quarter_of_its_buffer_ends_the_wait(
    recorder: Recorder, workers: list[Worker]
) -> None:
    capture = Capture(recorder, buffer_bytes=1 << 20)
    recorder.wait(0)
    waiting = threading.Thread(target=recorder.wait, args=(2 * PATIENCE_S,))
    waiting.start()
    workers[0].call(
        lambda: [capture.end(capture.begin("same")) for _ in range((1 << 20) // 32 // 3)]
    )
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()
    capture.finish()
    assert capture.counters().dropped == 0
