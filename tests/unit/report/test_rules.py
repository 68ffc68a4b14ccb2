"""The rules, on made-up ranges: what is too little to tell, what is serious, and how it is said."""

from __future__ import annotations

import json
from typing import Any

import pytest
from recorded_ranges import Ran, process

from helpers.batches import BASE_NS, MAIN_THREAD, WORKER_THREAD, make_batch
from otel_recfn.model.batch import NO_CONTEXT, Sample
from otel_recfn.model.events import EventFlag, EventSource, RecordScope, RowKind
from otel_recfn.report.finding import Finding
from otel_recfn.report.findings import MAX_FINDINGS, findings
from otel_recfn.report.process import Process
from otel_recfn.report.recording import Recording

NEXT = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def findings_by_rule(*ran: Ran, **keywords: int) -> dict[str, Finding]:
    return {finding.rule: finding for finding in findings([Recording([process(*ran, **keywords)])])}


def loads(us: int) -> list[Ran]:
    return [Ran(NEXT, 1_000_000), *[Ran(NEXT, us), Ran("work", 10_000 - us)] * 100]


@pytest.mark.parametrize(
    ("us", "is_found", "serious"), [(500, False, False), (4000, True, False), (6000, True, True)]
)
def test_the_first_batch_isnt_waited_for(us: int, is_found: bool, serious: bool) -> None:
    """It is half of the recording here."""
    data_finding = findings_by_rule(*loads(us)).get("data")
    assert (data_finding is not None) == is_found
    if data_finding is not None:
        assert data_finding.serious == serious
        assert data_finding.anchor == (NEXT,)
        batches = f"101 batches; after the first they take {us // 1000} ms each."
        assert data_finding.text == f"The DataLoader makes each batch in the loop itself: {batches}"


def test_batches_are_counted_as_in_the_tree_of_calls() -> None:
    """Which has a line for each place."""
    training = Ran("train", 40_000, (Ran(NEXT, 10_000),) * 4)
    text = findings_by_rule(training, *[Ran(NEXT, 10_000)] * 2)["data"].text
    assert f": 6 batches, 4 of them in {NEXT} in train; after the first" in text


def test_who_waits_is_the_range_that_waits_itself() -> None:
    lazy = Ran("nn.Module: lazy", 6_000, (), {"cpu_time_ns": 100_000})
    busy = Ran("nn.Module: busy", 4_000, (), {"cpu_time_ns": 3_900_000})
    waits = findings_by_rule(Ran("train", 10_000, (lazy, busy), {"cpu_time_ns": 4_000_000}))["cpu"]
    assert waits.anchor == ("train", "nn.Module: lazy")
    assert waits.share == pytest.approx(0.6)
    assert "for 6 ms, most of it in nn.Module: lazy in train" in waits.text


@pytest.mark.parametrize(
    ("others_ms", "words"),
    [(0, "other programs had the cores."), (6, "For 7 ms of it, other threads of this program")],
)
def test_without_samples_nobody_is_known_to_hold_threads_up(others_ms: int, words: str) -> None:
    """Another program may have had the core, also where other threads of this one worked."""
    ranges = [
        {
            "name": name,
            "thread": thread,
            "start_ns": BASE_NS,
            "end_ns": BASE_NS + 10_000_000,
            "cpu_time_ns": ms * 1_000_000,
        }
        for name, thread, ms in (("waits", MAIN_THREAD, 1), ("works", WORKER_THREAD, others_ms))
    ]
    (waits,) = findings([Recording([Process("", make_batch(ranges))])])
    assert (waits.rule, waits.title) == ("cpu", "Threads stand still")
    assert not waits.serious
    assert waits.share == pytest.approx((19 - others_ms) / 20)
    assert words in waits.text


@pytest.mark.parametrize(
    ("waits_for", "serious", "words"),
    [
        ("spinner-0", True, "Samples say what they waited for: `spinner-0` (100%)."),
        ("other processes", False, "Samples say what they waited for: other processes (100%)."),
        ("look_up: lock", False, "Samples say what they waited for: `look_up: lock` (100%)."),
    ],
)
def test_samples_say_what_threads_waited_for(waits_for: str, serious: bool, words: str) -> None:
    """Threads hold each other up if that is another thread, not if other processes have cores."""
    times = {"start_ns": BASE_NS, "end_ns": BASE_NS + 100_000_000}
    row = {"name": "waits", "thread": MAIN_THREAD, "cpu_time_ns": 1_000_000, **times}
    other = {**row, "name": "works", "thread": WORKER_THREAD, "cpu_time_ns": 60_000_000}
    batch = make_batch([row, other])
    around = int(batch.event_id[0])
    at_ns = BASE_NS + 50_000_000
    sample = Sample("look_up: lock", MAIN_THREAD, at_ns, 20_000_000, around, NO_CONTEXT)
    samples = [sample._replace(waits_for=waits_for, is_in_operator=True)]
    (waits,) = findings([Recording([Process("", batch, samples=samples)])])
    assert waits.rule == "cpu"
    assert waits.serious == serious
    assert words in waits.text


def waits_in(samples: dict[str, tuple[str, str]], *others: str) -> Finding:
    """The finding about ranges of 100 ms that waited, one after the other.

    A sample found the ranges in ``samples`` in a function that waited for something.
    """
    names = [*samples, *others]
    ranges = [
        {
            "name": name,
            "start_ns": BASE_NS + 100_000_000 * number,
            "end_ns": BASE_NS + 100_000_000 * (number + 1),
            "cpu_time_ns": 0,
        }
        for number, name in enumerate(names)
    ]
    batch = make_batch(ranges)
    found = [
        Sample(
            function,
            MAIN_THREAD,
            BASE_NS,
            20_000_000,
            int(batch.event_id[names.index(name)]),
            NO_CONTEXT,
            waits_for=waits_for,
        )
        for name, (function, waits_for) in samples.items()
    ]
    recording = Recording([Process("", batch, samples=found)])
    return next(each for each in findings([recording]) if each.rule == "cpu")


@pytest.mark.parametrize(
    ("function", "held_up"),
    [
        ("serve: concurrent.futures._base.Future.result", False),
        ("serve: queue.Queue.get", False),
        ("serve: threading.Event.wait", False),
        ("serve: logging.info", True),
        ("serve", True),
    ],
)
def test_whoever_waits_for_the_work_of_another_thread_is_not_held_up(
    function: str, held_up: bool
) -> None:
    waits = waits_in({"request": (function, "batcher-0")})
    assert (waits.title, waits.serious) == (
        ("Threads hold each other up", True) if held_up else ("Threads stand still", False)
    )
    assert "`batcher-0` (100%)" in waits.text


def test_the_range_is_named_in_which_threads_hold_each_other_up() -> None:
    """And not that which sleeps for as long; ranges without samples have the share of others."""
    waits = waits_in({"sleeps": ("main", "main"), "counts": ("main", "spinner-0")})
    assert waits.title == "Threads hold each other up"
    assert waits.anchor == ("counts",)
    assert waits.share == pytest.approx(1 / 2)
    assert "For 100 ms of it" in waits.text
    waits = waits_in({"sleeps": ("main", "main"), "counts": ("main", "spinner-0")}, "unsampled")
    assert waits.share == pytest.approx(1.5 / 3)


def test_waits_for_data_say_nothing_of_other_waits() -> None:
    waits = waits_in({NEXT: ("main: select.poll", "main: select.poll"), "counts": ("main", "spin")})
    assert waits.title == "Threads hold each other up"
    assert waits.text.count("%") == 1
    assert "`spin` (100%)" in waits.text


@pytest.mark.parametrize("cpu", [{}, {"cpu_time_ns": 1000}], ids=["unknown", "known"])
def test_loading_and_compiling_is_no_waiting(cpu: dict[str, int]) -> None:
    loading = Ran(NEXT, 5_000, (), cpu)
    compiling = Ran("torch.compile: f", 4_000, (), cpu)
    assert "cpu" not in findings_by_rule(
        Ran("train", 10_000, (loading, compiling), {"cpu_time_ns": 500_000})
    )


def test_nothing_is_said_of_waiting_where_the_cpu_time_isnt_known() -> None:
    assert findings_by_rule(Ran("train", 10_000)) == {}


def test_a_first_compilation_is_told_but_no_fault() -> None:
    compiling = Ran("torch.compile: f", 4_000, (), {"source": EventSource.COMPILATION})
    first = findings_by_rule(compiling, Ran("f", 1_000))["compile"]
    assert not first.serious
    assert first.title == "Compiles"


def test_another_compilation_is_a_fault_and_its_reason_is_told() -> None:
    attributes = {
        "recfn.compile.reason": "0/0:    x ==     1\nand more",
        "recfn.compile.graph_breaks": ["print"],
    }
    again = Ran("torch.compile: f", 4_000, (), {"attributes": json.dumps(attributes)})
    finding = findings_by_rule(*[again] * 3)["compile"]
    assert finding.serious
    assert (
        "compiled 3 times, 3 of them what it had compiled before. Most often because: 0/0: x == 1"
        in finding.text
    )
    assert "A graph break: print" in finding.text


def test_traces_of_torch_profiler_tell_of_other_compilations_by_what_ran() -> None:
    compiling = Ran("_compile.compile_inner (dynamo_timed)", 4_000)
    once = [compiling, Ran("Torch-Compiled Region: 0/0", 100)]
    again = [
        each
        for number in range(1, 4)
        for each in (compiling, Ran(f"Torch-Compiled Region: 0/{number}", 100))
    ]
    assert not findings_by_rule(*once, *once)["compile"].serious
    assert findings_by_rule(*once, *again)["compile"].serious


def test_a_loop_of_tiny_operators_is_one_range_that_calls_the_same_often() -> None:
    operators = tuple([Ran("aten::add", 2)] * 64)
    assert findings_by_rule(Ran("loop", 160, operators))["tiny"].anchor == ("loop", "aten::add")
    assert "tiny" not in findings_by_rule(
        Ran("one", 160, operators[:63]), Ran("two", 160, operators[:63])
    )
    assert "tiny" not in findings_by_rule(Ran("loop", 64_000, tuple([Ran("aten::add", 1000)] * 64)))
    threads = [
        Ran("aten::add", 2, columns={"thread": thread}) for thread in (MAIN_THREAD, WORKER_THREAD)
    ]
    assert "tiny" in findings_by_rule(*threads[:1] * 64)
    assert "tiny" not in findings_by_rule(*threads * 63)


CELL = Ran(
    "nn.Module: Cell_0", 30, (Ran("aten::addmm", 8), Ran("aten::tanh", 5), Ran("aten::add", 4))
)


def reader(moments: int) -> Ran:
    """A network that reads a sequence with a cell, in a loop of Python."""
    return Ran("nn.Module: Reader_0", 31 * moments, (CELL,) * moments)


def test_a_loop_that_calls_modules_is_found_at_any_depth() -> None:
    found = findings_by_rule(Ran("predict", 32 * 500, (reader(500),)))["tiny"]
    assert found.serious
    assert "1,500 operators in loops" in found.text
    assert "in `nn.Module: Reader_0`, which calls 1,500 each time." in found.text


def test_calls_of_modules_in_a_loop_are_part_of_it() -> None:
    """A cell takes 13 of its 30 us for itself."""
    found = findings_by_rule(reader(500))["tiny"]
    assert found.share == pytest.approx(30 / 31, rel=1e-3)
    assert "1,500 operators in loops take 10 us each" in found.text


def test_tiny_operators_have_their_share_of_the_time_worked() -> None:
    """Another program may have had the core for the rest."""
    waits = Ran("predict", 200_000, (reader(500),), {"cpu_time_ns": 16_000_000})
    found = findings_by_rule(waits)["tiny"]
    assert found.serious
    assert found.share == pytest.approx(15 / 200, rel=1e-3)
    works = Ran("predict", 200_000, (reader(500),), {"cpu_time_ns": 200_000_000})
    assert "tiny" not in findings_by_rule(works)


def test_a_short_loop_over_modules_is_how_a_model_works() -> None:
    assert "tiny" not in findings_by_rule(reader(333))
    assert "tiny" not in findings_by_rule(*[reader(200)] * 20)


def test_a_loop_over_steps_is_no_loop_of_operators() -> None:
    """Each step has to run, however small its model is."""
    steps = [Ran(f"ProfilerStep#{number}", 150, (CELL,) * 5) for number in range(500)]
    optimizer = Ran("Optimizer.step#SGD.step", 30)
    assert "tiny" not in findings_by_rule(Ran("epoch", 500 * 150, tuple(steps)))
    assert "tiny" not in findings_by_rule(Ran("epoch", 500 * 60, (CELL, optimizer) * 500))


def test_a_loop_that_asks_for_values_is_told_once() -> None:
    rules = findings_by_rule(
        Ran("loop", 1000, tuple([Ran("aten::select", 3), Ran("aten::item", 5)] * 100))
    )
    assert list(rules) == ["sync"]


def test_a_loss_that_is_read_now_and_then_is_no_fault() -> None:
    assert findings_by_rule(*[Ran("aten::item", 90)] * 31) == {}
    assert list(findings_by_rule(*[Ran("aten::item", 90)] * 32)) == ["sync"]


def test_the_module_or_block_that_calls_an_operator_is_named() -> None:
    asked = Ran("aten::is_nonzero", 90, (Ran("aten::item", 80),))
    inner = Ran("aten::mine", 90, (Ran("aten::other", 90, (asked,)),))
    loss = Ran("nn.Module: Loss_0", 90, (inner,), {"source": EventSource.MODULE})
    text = findings_by_rule(*[loss] * 40)["sync"].text
    assert "in aten::is_nonzero in aten::other in nn.Module: Loss_0." in text


def test_a_read_that_takes_long_waits_for_a_device() -> None:
    """Whose work isn't recorded, so that it may be all that a program can do."""
    reading = Ran(
        "loss", 1000, (Ran("aten::item", 1000, (Ran("aten::_local_scalar_dense", 900),)),)
    )
    waits = findings_by_rule(*[Ran("train", 2000, (reading,))] * 5)["sync"]
    assert (waits.title, waits.serious) == ("Waits for a device", False)
    assert (
        "5 calls that read a value took 1 ms each, most of it in aten::item in loss" in waits.text
    )
    assert findings_by_rule(*[Ran("aten::nonzero", 1000)] * 31) == {}


def test_copies_inside_of_an_operator_are_how_it_works() -> None:
    copy = Ran("aten::copy_", 900)
    assert findings_by_rule(Ran("aten::addmm", 1000, (copy,))) == {}
    node = Ran("autograd::engine::evaluate_function: ToCopyBackward0", 1000, (copy,))
    assert findings_by_rule(node)["copy"].serious


def test_large_tensors_are_told_of_only_where_memory_is_recorded() -> None:
    report = Ran("[memory]", 0, (), {"kind": RowKind.MEMORY, "nbytes": 1 << 24})
    assert findings_by_rule(
        *[Ran("aten::zeros", 1000, (Ran("aten::empty", 1000, (report,)),))] * 64
    )["memory"].serious
    assert "memory" not in findings_by_rule(
        *[Ran("aten::zeros", 1000, (Ran("aten::empty", 1000),))] * 64
    )


def test_pauses_count_up_to_ten_milliseconds() -> None:
    """So that a server that is idle for an hour has the shares of its requests."""
    copies = [Ran("aten::to", 2000), Ran("aten::mm", 2000)] * 10
    assert findings_by_rule(*copies, pause_us=3_600_000_000).get("copy") is None
    assert findings_by_rule(*copies, pause_us=1000)["copy"].share == pytest.approx(20 / (40 + 19))
    assert findings_by_rule(*copies)["copy"].share == pytest.approx(0.5)


def test_what_ran_beside_others_takes_wall_time_and_hides_no_finding() -> None:
    """Its thread may have waited for requests meanwhile."""
    others = Ran("beside", 96_000, (), {"flags": EventFlag.ASYNC})
    copies = findings_by_rule(others, Ran("aten::to", 2000), Ran("aten::mm", 2000))["copy"]
    assert copies.share == pytest.approx(0.02)
    assert copies.serious


def test_ranges_that_overlap_others_dont_wait() -> None:
    """Ten tasks that sleep at once are one thread."""
    sleeping = Ran("sleeps", 90_000, (), {"flags": EventFlag.ASYNC, "cpu_time_ns": 0})
    assert (
        findings_by_rule(*[sleeping] * 10, Ran("work", 1000, (), {"cpu_time_ns": 1_000_000})) == {}
    )


def test_what_a_gpu_does_is_not_the_programs_time() -> None:
    kernel = Ran("void at::native::kernel<1>", 90_000, (), {"device": "cuda:0"})
    assert findings_by_rule(kernel, Ran("aten::to", 2000), Ran("aten::mm", 2000))[
        "copy"
    ].share == pytest.approx(0.5)


def test_numbered_steps_have_one_path() -> None:
    steps = [
        Ran(f"ProfilerStep#{number}", 100_000, (Ran("aten::to", 60_000),)) for number in range(3)
    ]
    one = Ran("other", 100_000, (Ran("aten::to", 90_000),))
    assert findings_by_rule(*steps, one)["copy"].anchor == ("ProfilerStep", "aten::to")


def test_of_several_processes_the_worst_is_told_once() -> None:
    slow = process(Ran("aten::to", 3000), Ran("aten::mm", 1000), label="rank 1")
    ranks = [
        process(Ran("aten::to", 2000), Ran("aten::mm", 2000), label="rank 0"),
        slow,
        process(Ran("w", 1), label="rank 2"),
    ]
    (finding,) = findings([Recording([rank]) for rank in ranks])
    assert (finding.process, finding.share) == ("rank 1", pytest.approx(0.75))
    assert finding.text.endswith("Found in 2 of 3 processes; this is rank 1.")


def test_a_process_without_ranges_has_no_findings() -> None:
    assert findings([Recording([process()])]) == []
    assert findings([]) == []


def test_at_most_five_are_told_and_serious_ones_come_first() -> None:
    report = Ran("[memory]", 0, (), {"kind": RowKind.MEMORY, "nbytes": 1 << 24})
    ran = [
        *[Ran(NEXT, 2000)] * 10,
        Ran("train", 40_000, (), {"cpu_time_ns": 0}),
        Ran("torch.compile: f", 20_000),
        *[Ran("aten::item", 600)] * 32,
        Ran("aten::to", 20_000),
        *[Ran("aten::zeros", 300, (report,))] * 64,
    ]
    every = findings([Recording([process(*ran)])])
    assert len(every) == MAX_FINDINGS
    # Of the sixth, which took longest, another program may be the cause.
    assert "cpu" not in {each.rule for each in every}
    assert [(not each.serious, -each.share) for each in every] == sorted(
        (not each.serious, -each.share) for each in every
    )


def test_the_line_of_python_is_the_programs_own() -> None:
    stack = "/x/torch/_tensor.py(10): item\n/app/train.py(7): loop"
    asked = Ran("aten::item", 100, (), {"stack": stack})
    assert findings_by_rule(*[asked] * 40)["sync"].code == "/app/train.py(7): loop"
    called = Ran(
        "nn.Module: Mine",
        100,
        (Ran("aten::item", 100),),
        {"code": "/app/model.py(3): Mine.forward"},
    )
    assert findings_by_rule(*[called] * 40)["sync"].code == "/app/model.py(3): Mine.forward"


@pytest.mark.parametrize(
    "waiting", [{"name": "waits"}, {"name": "nn.Module: Waiting_0", "source": EventSource.MODULE}]
)
def test_threads_that_only_wait_change_no_finding(waiting: dict[str, Any]) -> None:
    """Blocks, and calls of modules, whose CPU time says that they wait."""
    columns = {
        "start_ns": BASE_NS,
        "end_ns": BASE_NS + 10_000_000,
        "cpu_time_ns": 0,
        "scope": RecordScope.USER_SCOPE,
    }
    copying = {"name": "aten::copy_", "start_ns": BASE_NS, "end_ns": BASE_NS + 6_000_000}
    computing = {
        "name": "aten::mm",
        "start_ns": BASE_NS + 6_000_000,
        "end_ns": BASE_NS + 10_000_000,
    }
    threads = [WORKER_THREAD._replace(number=number, thread_id=number) for number in range(2, 11)]
    others = [{**columns, **waiting, "thread": thread} for thread in threads]
    seen = Recording([Process("", make_batch([copying, computing, *others]))])
    (copies,) = [each for each in findings([seen]) if each.serious]
    assert (copies.rule, copies.share) == ("copy", pytest.approx(0.6))


def test_what_threads_wait_that_only_wait_is_no_fault() -> None:
    monitor = {
        "name": "monitor",
        "scope": RecordScope.USER_SCOPE,
        "thread": WORKER_THREAD,
        "cpu_time_ns": 1000,
    }
    times = {"start_ns": BASE_NS, "end_ns": BASE_NS + 10_000_000}
    ran = make_batch([{"name": "aten::mm", **times}, {**monitor, **times}])
    assert findings([Recording([Process("", ran)])]) == []
