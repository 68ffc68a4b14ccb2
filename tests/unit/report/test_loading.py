"""The findings about a DataLoader, on made-up ranges."""

from __future__ import annotations

import pytest
from recorded_ranges import Ran, process

from helpers.batches import BASE_NS, MAIN_THREAD
from otel_recfn.model.batch import Sample
from otel_recfn.model.columns import NO_CONTEXT
from otel_recfn.model.events import make_event_id
from otel_recfn.report.finding import Finding
from otel_recfn.report.findings import findings
from otel_recfn.report.process import Process
from otel_recfn.report.recording import Recording

IN_LOOP = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
OF_WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
TRAIN = Ran("aten::mm", 1000)


def epoch(*batches_us: int, name: str = IN_LOOP) -> list[Ran]:
    return [ran for us in batches_us for ran in (Ran(name, us), TRAIN)]


def found_in(recorded: Process) -> dict[str, Finding]:
    return {finding.rule: finding for finding in findings([Recording([recorded])])}


def found(*ran: Ran) -> dict[str, Finding]:
    return found_in(process(*ran))


def test_a_slow_batch_has_its_number() -> None:
    every = found(*epoch(*[100] * 5, 9000, *[100] * 4))
    assert [*every] == ["batch"]
    assert every["batch"].title == "A batch takes 90 times as long as others"
    assert every["batch"].serious
    assert every["batch"].text == (
        f"The loop waited 9 ms for batch 5 of 10 (from 0) in {IN_LOOP}, and at most 100 us for"
        " others."
    )


@pytest.mark.parametrize(("name", "serious"), [(IN_LOOP, True), (OF_WORKERS, False)])
def test_the_first_batch_may_be_the_slow_one(name: str, serious: bool) -> None:
    """Of workers it may be their start."""
    first = found(*epoch(9000, *[100] * 9, name=name))["batch"]
    assert first.serious == serious
    assert "for batch 0 of " in first.text
    later = found(*epoch(*[100] * 8, 9000, 100, 100, name=OF_WORKERS))["batch"]
    assert later.serious


def test_the_call_that_ends_an_epoch_brings_no_batch() -> None:
    """It waits until workers have ended."""
    assert "batch" not in found(*epoch(*[100] * 9, 9000, name=OF_WORKERS))
    ends = Ran(IN_LOOP, 9000, (), {"error": "StopIteration: "})
    assert "batch" not in found(*epoch(*[100] * 9), ends, *epoch(*[100] * 9))
    assert "batch" in found(*epoch(*[100] * 9), Ran(IN_LOOP, 9000), *epoch(*[100] * 9))


def test_batches_that_differ_are_how_a_loader_works() -> None:
    assert "batch" not in found(*epoch(*[100, 100, 100, 4000] * 5))
    assert "batch" not in found(*epoch(100, 100, 400, 100))
    assert "batch" not in found(*epoch(100, 100, 9000))


def test_what_is_slow_in_few_batches_is_told_once() -> None:
    every = found(*epoch(*[400] * 30, 90_000, *[400] * 19, 60_000))
    assert " 2 batches are slow." in every["batch"].text
    assert "data" not in every


def test_samples_say_which_function_of_the_dataset_it_is() -> None:
    recorded = process(*epoch(*[100] * 5, 90_000, *[100] * 4))
    slow = make_event_id(MAIN_THREAD.number, 11)
    samples = [
        Sample(name, MAIN_THREAD, BASE_NS, 20_000_000, parent, NO_CONTEXT)
        for name, parent in [
            ("Pictures.__getitem__: time.sleep", slow),
            ("Pictures.__getitem__: time.sleep", slow),
            ("main: torch.utils.data.dataloader._Iterator.__next__", slow),
            ("Pictures.__getitem__: gzip.open", slow + 2),
        ]
    ]
    text = found_in(recorded._replace(samples=samples))["batch"].text
    assert text.endswith(
        " `Pictures.__getitem__: time.sleep` ran meanwhile: 2 samples found it there."
    )


def test_samples_of_workers_say_which_worker_and_function_it_is() -> None:
    recorded = process(*epoch(90_000, *[100] * 9, name=OF_WORKERS))
    workers = [
        worker("pid1", "Pictures.__getitem__: PIL.Image.open", 0),
        worker("pid2", "main: torch.utils.data.worker.loop", 0),
        worker("pid3", "select.poll", 0),
        worker("pid4", "Pictures.__getitem__", 200),
    ]
    found = findings([Recording([recorded], workers)])
    (slow,) = [each for each in found if each.rule == "batch"]
    assert slow.text.endswith(
        " `Pictures.__getitem__: PIL.Image.open` ran meanwhile in pid1: 4 samples found it there."
    )
    assert slow.serious


@pytest.mark.parametrize(
    ("items", "words"),
    [
        (["9 (worker 0)"] * 3 + ["8 (worker 0)"], ", 3 of them at index 9 (worker 0)."),
        (["9", "9", "", ""], ", 2 of them at index 9."),
        (["9", "8", "7", "6"], " 4 samples found it there."),
        ([""] * 4, " 4 samples found it there."),
    ],
)
def test_the_item_is_named_at_which_most_samples_found_the_function(
    items: list[str], words: str
) -> None:
    recorded = process(*epoch(90_000, *[100] * 9, name=OF_WORKERS))
    made = worker("pid1", "Pictures.__getitem__", 0)
    samples = [sample._replace(item=item) for sample, item in zip(made.samples, items, strict=True)]
    found = findings([Recording([recorded], [made._replace(samples=samples)])])
    (slow,) = [each for each in found if each.rule == "batch"]
    assert slow.text.endswith(words)


def worker(label: str, function: str, after_ms: int) -> Process:
    """A process in which four samples found a function."""
    samples = [
        Sample(function, MAIN_THREAD, BASE_NS + ms * 1_000_000, 20_000_000, 0, NO_CONTEXT)
        for ms in range(after_ms + 20, after_ms + 81, 20)
    ]
    return process(Ran("aten::stack", 10), label=label)._replace(samples=samples)
