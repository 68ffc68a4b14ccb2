"""What spans of the phases of a compilation are called: PyTorch's keys in words that people know."""

from __future__ import annotations

SUFFIX = " (dynamo_timed)"
"""By which PyTorch marks the names of phases."""
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
    "compile_fx_inner": "Inductor: graph",
    "fx_codegen_and_compile": "Inductor: compile",
    "GraphLowering.run": "Inductor: lowering",
    "GraphLowering.compile_to_fn": "Inductor: function",
    "GraphLowering.compile_to_module": "Inductor: module",
    "GraphLowering.codegen": "code generation",
    "Scheduler.codegen": "code generation: kernels",
    "PythonWrapperCodegen.generate": "code generation: wrapper",
    "WrapperCodeGen.generate": "code generation: wrapper",
    "Scheduler.__init__": "Inductor: schedule",
    "PyCodeCache.load_by_key_path": "load code",
    "async_compile.wait": "wait for compilers",
    "compile_file": "C++ compiler",
}
"""Of PyTorch 2.4 to 2.15. Others are called by their keys."""
_ATTEMPT = "compile_attempt_"


def phase_name(name: str) -> str:
    """What a phase of that name is called; any other name as it is."""
    key = name.removesuffix(SUFFIX)
    if key == name:
        return name
    return WORDS.get(key) or (f"Dynamo, attempt {int(key[-1]) + 1}" if key[:-1] == _ATTEMPT and key[-1].isdigit() else key)
