"""Traces of programs on a GPU, as torch.profiler writes them: operators, the runtime's calls in
them, kernels and copies in the lanes of streams, arrows between them, and steps in both.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

GEMM = "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
STREAM, STREAM_OF_NCCL = 7, 20
LAUNCH_US = 8.0


class GpuProgram:
    """A program whose CPU and GPU each do one thing after the other. Times are in microseconds."""

    def __init__(self, rank: int = 0, ranks: int = 1) -> None:
        self.rank = rank
        self.ranks = ranks
        self.pid = 4242 + rank
        self.now = 0.0
        """The moment up to which the CPU has come."""
        self.done = {STREAM: 0.0, STREAM_OF_NCCL: 0.0}
        """When each stream will have done what was launched."""
        self.events: list[dict[str, Any]] = []
        self._launches = 0
        for pid, label in ((self.pid, "CPU"), (rank, f"GPU {rank}")):
            self._names("process_name", pid, 0, name="python")
            self._names("process_labels", pid, 0, labels=label)
        self._names("thread_name", self.pid, self.pid, name=f"thread {self.pid} (python)")
        for stream in self.done:
            self._names("thread_name", rank, stream, name=f"stream {stream} ")

    def _names(self, what: str, pid: int, tid: int, **args: str) -> None:
        self.events.append({"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": args})

    def slice(
        self, name: str, category: str, begin: float, us: float, thread: int = 0, **args: Any
    ) -> None:
        """A slice in a thread of the CPU; 0 is the main thread."""
        place = {"pid": self.pid, "tid": thread or self.pid, "ts": begin, "dur": us}
        self.events.append({"ph": "X", "cat": category, "name": name, **place, "args": args})

    def _device_slice(
        self, name: str, category: str, begin: float, us: float, stream: int, **args: Any
    ) -> None:
        place = {"pid": self.rank, "tid": stream, "ts": begin, "dur": us}
        args |= {"stream": stream, "device": self.rank}
        self.events.append({"ph": "X", "cat": category, "name": name, **place, "args": args})

    def _operators(self, names: tuple[str, ...], begin: float, end: float) -> None:
        for depth, name in enumerate(names):
            self.slice(name, "cpu_op", begin + depth, end - begin - 2 * depth)

    def launch(
        self,
        name: str,
        us: float,
        category: str = "kernel",
        stream: int = STREAM,
        call_us: float = LAUNCH_US,
    ) -> None:
        """Launches what a stream does next, and waits so long in the call."""
        self._launches += 1
        call = "cudaLaunchKernel" if category == "kernel" else "cudaMemcpyAsync"
        self.slice(call, "cuda_runtime", self.now, call_us, correlation=self._launches)
        begin = max(self.now + LAUNCH_US, self.done[stream])
        self._device_slice(name, category, begin, us, stream, correlation=self._launches)
        arrow = {"cat": "ac2g", "name": "ac2g", "id": self._launches}
        self.events.append({"ph": "s", "pid": self.pid, "tid": self.pid, "ts": self.now, **arrow})
        self.events.append(
            {"ph": "f", "pid": self.rank, "tid": stream, "ts": begin, "bp": "e", **arrow}
        )
        self.done[stream] = begin + us
        self.now += call_us

    def compute(self, us: float, times: int = 1, name: str = "aten::linear") -> None:
        """Operators that launch a kernel of so many microseconds each."""
        for _ in range(times):
            begin = self.now
            self.now = self.now + 10
            self.launch(GEMM, us)
            self.now += 10
            self.slice(name, "cpu_op", begin, self.now - begin)
            self.now += 5

    def work_on_cpu(self, us: float, name: str = "aten::topk", category: str = "cpu_op") -> None:
        self.slice(name, category, self.now, us)
        self.now += us + 5

    def all_reduce(self, until: float) -> None:
        """A collective, which ends when the last rank has come."""
        self.done[STREAM_OF_NCCL] = max(self.done[STREAM], self.now)
        us = until - self.done[STREAM_OF_NCCL] - LAUNCH_US
        self.slice("c10d::allreduce_", "cpu_op", self.now, 40)
        self.slice("nccl:all_reduce", "user_annotation", self.now + 1, 38)
        self.now += 10
        self.launch(ALL_REDUCE, us, stream=STREAM_OF_NCCL)
        begin = self.done[STREAM_OF_NCCL] - us
        self._device_slice("nccl:all_reduce", "gpu_user_annotation", begin, us, STREAM_OF_NCCL)
        self.done[STREAM] = self.done[STREAM_OF_NCCL]
        self.now += 30

    def wait(self, how: str) -> None:
        """Waits until the GPU has done all, in one of WAITS."""
        operators, call, copies = WAITS[how]
        begin = self.now
        self.now += 10
        if copies and call:
            self.launch("Memcpy DtoH (Device -> Pinned)", 1.0, "gpu_memcpy")
        end = max(self.done[STREAM], self.now) + 5
        if call:
            self.slice(call, "cuda_runtime", self.now, end - self.now)
        else:
            self.launch(
                "Memcpy DtoH (Device -> Pageable)", 1.0, "gpu_memcpy", call_us=end - self.now
            )
        self._operators(operators, begin, end + 10)
        self.now = end + 15

    def step(self, number: int, begin: float) -> None:
        """A step from this moment to now, in the lanes of both."""
        name = f"ProfilerStep#{number}"
        self.slice(name, "user_annotation", begin, self.now - begin)
        self._device_slice(name, "gpu_user_annotation", begin, self.now - begin, STREAM)

    def write(self, path: Path) -> Path:
        fields = {
            "schemaVersion": 1,
            "traceEvents": self.events,
            "baseTimeNanoseconds": 1_700_000_000_000_000_000,
        }
        if self.ranks > 1:
            fields["distributedInfo"] = {
                "backend": "nccl",
                "rank": self.rank,
                "world_size": self.ranks,
            }
        path.write_text(json.dumps(fields), encoding="utf-8")
        return path


COPIED = ("aten::to", "aten::_to_copy", "aten::copy_")
WAITS: dict[str, tuple[tuple[str, ...], str, bool]] = {
    "x.cpu()": (COPIED, "cudaStreamSynchronize", True),
    "x.cpu() from pageable memory": (COPIED, "", True),
    "x.item()": (("aten::item", "aten::_local_scalar_dense"), "cudaStreamSynchronize", True),
    "x[mask]": (("aten::index", "aten::nonzero"), "cudaStreamSynchronize", True),
    "torch.cuda.synchronize()": ((), "cudaDeviceSynchronize", False),
    "event.synchronize()": ((), "cudaEventSynchronize", False),
    "an operator of one's own": (("mine::wait",), "hipStreamSynchronize", False),
}
"""The operators, the call in which they wait (empty: the copy itself), and whether they copy."""
