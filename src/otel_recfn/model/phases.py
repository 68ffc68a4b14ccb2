"""The phases of a compilation that are shown: PyTorch's keys, and words that people know for
spans.
"""

from __future__ import annotations

SUFFIX = " (dynamo_timed)"
"""The ending by which PyTorch marks the names of phases."""
WORDS = {
    "_compile.<locals>.compile_inner": "Dynamo",
    "_compile.compile_inner": "Dynamo",
    "compile_attempt_0": "Dynamo",
    "bytecode_tracing": "Dynamo: trace",
    "build_guards": "Dynamo: guards",
    "OutputGraph.call_user_compiler": "backend",
    "create_aot_dispatcher_function": "AOT autograd",
    "AOTAutogradCache.inductor_load": "AOT autograd: load from cache",
    "aot_collect_metadata": "AOT autograd: metadata",
    "aot_trace_joint_graph": "AOT autograd: joint graph",
    "min_cut_rematerialization_partition": "AOT autograd: partition",
    "compile_fx.<locals>.fw_compiler_base": "Inductor",
    "compile_fx.<locals>.bw_compiler": "Inductor",
    "_recursive_pre_grad_passes": "Inductor: passes before autograd",
    "_recursive_joint_graph_passes": "Inductor: passes on the joint graph",
    "_recursive_post_grad_passes": "Inductor: passes after autograd",
    "GraphLowering.run": "Inductor: lowering",
    "GraphLowering.codegen": "code generation",
    "Scheduler.__init__": "code generation: schedule",
    "Scheduler.codegen": "code generation: kernels",
    "PythonWrapperCodegen.generate": "code generation: wrapper",
    "WrapperCodeGen.generate": "code generation: wrapper",
    "PyCodeCache.load_by_key_path": "load code",
    "async_compile.wait": "wait for compilers",
    "compile_file": "C++ compiler",
}
"""The phases of PyTorch 2.4 to 2.15, without those that only call one of these, or that last for
a moment.
"""
_MARKED_BY_TORCH = {
    "compile_fx_inner": "Inductor: graph",
    "fx_codegen_and_compile": "Inductor: compile",
    "GraphLowering.compile_to_fn": "Inductor: function",
    "GraphLowering.compile_to_module": "Inductor: module",
}
"""Some of those, which PyTorch before 2.13, and while torch.profiler runs, announces itself."""
_ATTEMPT = "compile_attempt_"


def phase_name(name: str) -> str:
    """The name in spans of a phase with PyTorch's name: its key, if there are no words; any
    other name as it is.
    """
    key = name.removesuffix(SUFFIX)
    return name if key == name else phase_words(key) or _MARKED_BY_TORCH.get(key, key)


def phase_words(key: str) -> str:
    """The words for the phase of that key; empty if it isn't shown."""
    attempt = key.removeprefix(_ATTEMPT)
    return WORDS.get(key) or (
        f"Dynamo, attempt {int(attempt) + 1}" if attempt != key and attempt.isdigit() else ""
    )
