"""What ran on a device, told from the CPU's time whatever a trace calls it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from otel_recfn.report.activities import Activity
from otel_recfn.report.files import read_processes
from otel_recfn.report.kinds import GPU
from otel_recfn.report.recording import Recording

pytestmark = pytest.mark.one_python

ON_HOST = {"pid": 1, "tid": 1}
ON_STREAM = {"pid": 0, "tid": 7}


def slice_of(name: str, category: str | None, lane: dict[str, Any], **args: Any) -> dict[str, Any]:
    event = {"ph": "X", "name": name, "ts": 0, "dur": 5, **lane, "args": args}
    return event if category is None else {**event, "cat": category}


def named(what: str, name: str, lane: dict[str, Any], key: str = "name") -> dict[str, Any]:
    return {"ph": "M", "name": what, **lane, "args": {key: name}}


def activities(directory: Path, *events: dict[str, Any]) -> dict[str, Activity]:
    path = directory / "t.json"
    path.write_text(json.dumps({"traceEvents": list(events)}))
    seen = Recording(read_processes([path]))
    assert ((seen.kind == GPU) == (seen.activity >= Activity.KERNEL)).all()
    assert (seen.takes_thread_time == (seen.kind != GPU)).all()
    return {
        seen.labels[label]: Activity(number)
        for label, number in zip(seen.label, seen.activity, strict=True)
    }


@pytest.mark.parametrize(
    ("category", "expected"),
    [
        ("kernel", Activity.KERNEL),
        ("Kernel", Activity.KERNEL),
        ("mtia_ccp_events", Activity.KERNEL),
        ("hpu_op", Activity.KERNEL),
        ("gpu_memcpy", Activity.MEMCPY),
        ("Memcpy", Activity.MEMCPY),
        ("Memset", Activity.MEMSET),
        ("collective_comm", Activity.COLLECTIVE),
        ("cuda_sync", Activity.SYNC),
        ("xpu_sync", Activity.SYNC),
        ("cuda_event", Activity.MARKER),
        ("mtia_insight", Activity.MARKER),
        ("gpu_user_annotation", Activity.MARKER),
    ],
)
def test_activity_types_of_devices(tmp_path: Path, category: str, expected: Activity) -> None:
    events = [slice_of("aten::mm", "cpu_op", ON_HOST), slice_of("gemm", category, ON_STREAM)]
    assert activities(tmp_path, *events) == {"aten::mm": Activity.CPU, "gemm": expected}


@pytest.mark.parametrize(
    "category", ["cuda_runtime", "Runtime", "cuda_driver", "xpu_runtime", "mtia_runtime", "driver"]
)
def test_calls_into_a_runtime_are_the_cpus(tmp_path: Path, category: str) -> None:
    launch = slice_of("hipLaunchKernel", category, ON_HOST, stream=7)
    assert activities(tmp_path, launch) == {"hipLaunchKernel": Activity.RUNTIME}


def test_what_exchanges_data_with_ranks_is_a_collective(tmp_path: Path) -> None:
    reduce = slice_of("ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)", "kernel", ON_STREAM)
    copy = slice_of("memcpy32_post", "kernel", ON_STREAM)
    assert activities(tmp_path, reduce, copy) == {
        reduce["name"]: Activity.COLLECTIVE,
        copy["name"]: Activity.KERNEL,
    }


def test_lanes_of_an_npu_whose_slices_have_no_category(tmp_path: Path) -> None:
    """As torch_npu writes them: host and device differ by the names and labels of their
    processes.
    """
    lanes = [{"pid": pid, "tid": tid} for pid, tid in ((2, 10), (3, 20), (4, 30), (5, 40))]
    found = activities(
        tmp_path,
        slice_of("MatMulV2", None, lanes[0]),
        slice_of("EVENT_WAIT", None, lanes[0]),
        slice_of("hcom_allReduce_", None, lanes[1]),
        slice_of("Free", None, lanes[2]),
        slice_of("aclnnMatmul", None, lanes[3]),
        named("process_name", "Ascend Hardware", lanes[0]),
        named("thread_name", "Stream 2", lanes[0]),
        named("process_name", "Communication", lanes[1]),
        named("process_labels", "NPU", lanes[2], "labels"),
        named("process_name", "CANN", lanes[3]),
        named("process_labels", "CPU", lanes[3], "labels"),
    )
    assert found == {
        "MatMulV2": Activity.KERNEL,
        "EVENT_WAIT": Activity.SYNC,
        "hcom_allReduce_": Activity.COLLECTIVE,
        "Free": Activity.MARKER,
        "aclnnMatmul": Activity.CPU,
    }


def test_a_slice_that_names_its_stream_is_a_devices(tmp_path: Path) -> None:
    events = [
        slice_of("gemm", "ours", ON_STREAM, stream=7),
        slice_of("beside", None, ON_STREAM),
        slice_of("a", "ours", ON_HOST),
    ]
    assert activities(tmp_path, *events) == {
        "gemm": Activity.KERNEL,
        "beside": Activity.KERNEL,
        "a": Activity.CPU,
    }


def test_lanes_of_the_cpu_stay_the_cpus_whatever_number_their_process_has(tmp_path: Path) -> None:
    """In a container the program is process 1, and torch.profiler calls GPU 1 process 1, too."""
    host = slice_of("aten::mm", "cpu_op", ON_HOST)
    found = activities(
        tmp_path,
        named("process_labels", "GPU 1", {"pid": 1}, "labels"),
        host,
        slice_of("our own", "ours", ON_HOST),
        slice_of("habana", "hpu_op", ON_HOST),
        slice_of("gemm", "kernel", {"pid": 1, "tid": 7}),
    )
    assert found == {
        "aten::mm": Activity.CPU,
        "our own": Activity.CPU,
        "habana": Activity.CPU,
        "gemm": Activity.KERNEL,
    }


@pytest.mark.parametrize("category", ["Operator", "cpu_op", None])
def test_a_step_is_one_by_its_name_where_the_category_is_that_of_operators(
    tmp_path: Path, category: str | None
) -> None:
    """Earlier versions of torch.profiler and torch_npu write it so."""
    path = tmp_path / "t.json"
    all_events = [
        slice_of("ProfilerStep#3", category, ON_HOST),
        slice_of("ProfilerStep#4", "kernel", ON_STREAM),
    ]
    path.write_text(json.dumps(all_events))
    (wall,) = Recording(read_processes([path])).walls
    assert [step.name for thread in wall.threads for step in thread.steps] == ["ProfilerStep#3"]
