"""What a report says of programs on a GPU: who waits for it, what made it ready, and how busy it
was.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gpu_traces import ALL_REDUCE, COPIED, GEMM, WAITS, GpuProgram

from otel_recfn.report.files import read_processes
from otel_recfn.report.report import Report

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def report_of(folder: Path, *programs: GpuProgram) -> Report:
    paths = [program.write(folder / f"trace.rank{program.rank}.json") for program in programs]
    return Report(read_processes(paths))


def as_data(folder: Path, *programs: GpuProgram) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(report_of(folder, *programs).text("json"))
    return data


def trained(how: str, kernel_us: float, cpu_us: float) -> GpuProgram:
    """Six steps, each of which launches twenty kernels, waits for them, and then works on the
    CPU.
    """
    program = GpuProgram()
    for number in range(6):
        begin = program.now
        program.compute(kernel_us, 20)
        program.wait(how)
        program.work_on_cpu(cpu_us)
        program.step(number, begin)
    return program


@pytest.mark.parametrize("how", WAITS)
def test_who_waits_for_the_gpu_is_found_whatever_the_operator_is_called(
    how: str, tmp_path: Path
) -> None:
    data = as_data(tmp_path, trained(how, 400, 6000))
    first, *others = data["findings"]
    assert (first["title"], first["rule"], first["serious"]) == ("Waits for the GPU", "gpu", True)
    assert first["share"] == pytest.approx(6 * (20 * 400 - 20 * 33) / (6 * 14_000), abs=0.02)
    assert "in 6 calls" in first["text"]
    assert "the GPU was busy for 100% of that, and for 5" in first["text"]
    assert "before you wait" in first["next_step"]
    operators, call, _ = WAITS[how]
    assert first["anchor"] == ["ProfilerStep", *operators, call or "cudaMemcpyAsync"]
    assert others == []
    assert data["what_took_the_time"][0].startswith("Waiting for the GPU took 5")


def test_where_the_gpu_never_pauses_its_work_is_to_be_made_shorter(tmp_path: Path) -> None:
    (first,) = as_data(tmp_path, trained("x.item()", 4000, 10))["findings"]
    assert (first["rule"], first["serious"]) == ("gpu", False)
    assert (
        first["next_step"]
        == f"Make the GPU's work shorter, as it hardly pauses: begin with {GEMM}, 100% of its work."
    )


def test_a_launch_waits_where_the_queue_is_full(tmp_path: Path) -> None:
    program = GpuProgram()
    for _ in range(500):
        program.launch(GEMM, 100, call_us=98)
    (first,) = as_data(tmp_path, program)["findings"]
    assert (first["rule"], first["anchor"]) == ("gpu", ["cudaLaunchKernel"])


def test_a_trace_without_calls_of_the_runtime_has_the_operators_that_wait(tmp_path: Path) -> None:
    program = trained("x.cpu()", 400, 6000)
    program.events = [event for event in program.events if event.get("cat") != "cuda_runtime"]
    data = as_data(tmp_path, program)
    (first,) = data["findings"]
    assert (first["rule"], first["anchor"]) == ("gpu", ["ProfilerStep", "aten::to"])
    assert data["what_took_the_time"][0].startswith("Waiting for the GPU took 5")


def test_many_values_that_are_asked_for_are_one_finding(tmp_path: Path) -> None:
    """The time until the GPU has them isn't that of asking, too."""
    program = GpuProgram()
    for _ in range(100):
        program.compute(500)
        program.wait("x.item()")
    assert [finding["rule"] for finding in as_data(tmp_path, program)["findings"]] == ["gpu"]


def test_waiting_mostly_for_copies_is_mended_in_the_copies(tmp_path: Path) -> None:
    program = GpuProgram()
    for _ in range(10):
        program.compute(100)
        program.launch("Memcpy HtoD (Pageable -> Device)", 2000, "gpu_memcpy", call_us=2100)
        program.work_on_cpu(1000)
    (first,) = as_data(tmp_path, program)["findings"]
    assert ", mostly with copies, and for" in first["text"]
    assert "pin_memory=True" in first["next_step"]


def test_copies_of_the_cpu_are_its_own_work_also_beside_a_busy_gpu(tmp_path: Path) -> None:
    program = GpuProgram()
    for _ in range(10):
        program.compute(4000)
        program.now += 1
        begin = program.now
        program.work_on_cpu(5000, COPIED[0])
        program.slice(COPIED[2], "cpu_op", begin + 1, 4990)
        program.work_on_cpu(2000)
    (first,) = as_data(tmp_path, program)["findings"]
    assert (first["title"], first["share"]) == ("Copies and casts", pytest.approx(0.71, abs=0.01))
    assert "Meanwhile the GPU was busy for 80% of the time. It was idle for 4" in first["text"]


def test_a_gpu_that_idles_while_data_is_loaded_is_told(tmp_path: Path) -> None:
    program = GpuProgram()
    for number in range(10):
        begin = program.now
        program.work_on_cpu(40_000, LOADER, "user_annotation")
        program.compute(300, 20)
        program.wait("x.item()")
        program.step(number, begin)
    data = as_data(tmp_path, program)
    first, second = data["findings"]
    assert (first["rule"], first["serious"]) == ("data", True)
    assert "Meanwhile the GPU was busy for 0% of the time." in first["text"]
    assert (second["rule"], second["serious"]) == ("gpu", False)
    (gpu,) = data["gpu"]
    assert gpu["busy_us"] == pytest.approx(10 * 20 * 300, rel=0.01)
    assert gpu["busy_us"] + gpu["idle_us"] == pytest.approx(gpu["length_us"])


def test_the_first_use_of_cuda_is_named_as_that(tmp_path: Path) -> None:
    program = GpuProgram()
    for depth, name in enumerate(("aten::to", "aten::_to_copy", "aten::empty_strided")):
        program.slice(name, "cpu_op", depth, 3_000_020 - 2 * depth)
    program.slice("cudaFree", "cuda_runtime", 10, 3_000_000)
    program.now = 3_000_030
    program.slice("aten::linear", "cpu_op", program.now, 55_008)
    program.slice("cuLibraryLoadData", "cuda_driver", program.now + 5, 55_000)
    program.now += 55_010
    program.compute(2000, 100)
    program.wait("torch.cuda.synchronize()")
    data = as_data(tmp_path, program)
    (first,) = data["findings"]
    assert (first["title"], first["serious"]) == ("CUDA's first use", False)
    assert first["share"] == pytest.approx(0.94, abs=0.01)
    assert first["text"].startswith("2 calls took 3.06 s to make the GPU ready")
    assert first["anchor"][-2:] == ["aten::empty_strided", "cudaFree"]
    assert data["what_took_the_time"][0].startswith("First use of the GPU took 94%")


def test_memory_that_is_given_back_waits_and_is_no_first_use(tmp_path: Path) -> None:
    program = GpuProgram()
    program.compute(50_000, 2)
    program.slice("cudaFree", "cuda_runtime", program.now, 90_000)
    (first,) = as_data(tmp_path, program)["findings"]
    assert first["rule"] == "gpu"


def two_ranks() -> list[GpuProgram]:
    """The second loads its data slowly, and the first one waits for it in collectives."""
    ranks = [GpuProgram(rank, 2) for rank in range(2)]
    for rank, program in enumerate(ranks):
        for number in range(5):
            begin = program.now = number * 60_000.0
            program.work_on_cpu(30_000 if rank else 2000, LOADER, "user_annotation")
            program.compute(1500, 10)
            program.all_reduce(begin + 52_000)
            program.wait("x.item()")
            program.step(number, begin)
    return ranks


def test_each_rank_has_the_numbers_of_its_gpu(tmp_path: Path) -> None:
    report = report_of(tmp_path, *two_ranks())
    data = json.loads(report.text("json"))
    first, second = data["gpu"]
    assert [first["process"], second["process"]] == ["rank0", "rank1"]
    assert first["kernels_us"] == second["kernels_us"] == pytest.approx(5 * 10 * 1500)
    assert (
        first["collectives_us"]
        == first["collectives_alone_us"]
        == pytest.approx(5 * 35_000, rel=0.01)
    )
    assert second["collectives_us"] == pytest.approx(5 * 7000, rel=0.01)
    assert first["busy_us"] == pytest.approx(
        first["kernels_us"] + first["collectives_us"], rel=0.01
    )
    sentence = (
        "rank0: the GPU was busy for 86% of 292 ms, idle for 14%: kernels 26%, collectives 60%, 60%"
        " while nothing else ran."
    )
    assert sentence in report.text("md")


def test_a_rank_that_waits_in_collectives_is_sent_to_the_others(tmp_path: Path) -> None:
    waits, loads = report_of(tmp_path, *two_ranks()).findings
    assert (waits.rule, waits.process, loads.rule, loads.process) == (
        "gpu",
        "rank0",
        "data",
        "rank1",
    )
    assert "mostly with collectives, in which it may wait for other ranks" in waits.text
    assert "those faster that come late" in waits.next_step


def test_annotations_in_a_streams_lane_are_no_work(tmp_path: Path) -> None:
    rows = {row["name"]: row for row in as_data(tmp_path, two_ranks()[0])["by_name"]}
    assert rows["ProfilerStep"]["count"] == 5
    assert rows["nccl:all_reduce"]["total_us"] == pytest.approx(5 * 38)
    assert rows[ALL_REDUCE]["self_us"] == pytest.approx(5 * 35_000, rel=0.01)
    assert rows[ALL_REDUCE]["self_share"] is None


def test_what_the_profiler_itself_takes_is_no_work(tmp_path: Path) -> None:
    program = GpuProgram()
    program.compute(2000, 100)
    program.wait("torch.cuda.synchronize()")
    without = as_data(tmp_path, program)
    times = {"pid": -1, "tid": 0, "ts": 0, "dur": program.now}
    program.events.append(
        {"ph": "X", "cat": "overhead", "name": "Activity Buffer Request", **times}
    )
    data = as_data(tmp_path, program)
    for part in ("findings", "what_took_the_time", "gpu"):
        assert data[part] == without[part]


def test_without_a_gpu_nothing_is_said_of_one(tmp_path: Path) -> None:
    program = GpuProgram()
    program.work_on_cpu(5000, "aten::to")
    text = report_of(tmp_path, program).text("md")
    assert "Copies and casts" in text
    assert "GPU was" not in text
    assert "## What the GPU did" not in text
