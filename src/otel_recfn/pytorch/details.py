"""What we rely on in PyTorch beyond what has not changed in years: the one place to read when a new PyTorch comes.

Each detail is looked for where it is used, and its absence costs what is said here and nothing else. In C++ that happens when
our libraries are compiled (``native/pytorch/features.hpp``); they tell what they found, by the names below. What nothing can do
without: RecordFunction's name, scope, sequence number, handle and thread, its callbacks, their registration in C++, its switch.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

log = logging.getLogger("otel_recfn")


class Detail(NamedTuple):
    """One detail of PyTorch's."""

    what: str
    """By PyTorch's names. In Python: ``module:attribute``."""
    lost: str
    """What is so where this PyTorch lacks it."""

    @property
    def place(self) -> tuple[str, str]:
        """Of a detail in Python: the module, and the path of the attribute in it."""
        module, _, path = self.what.partition(":")
        return module, path


RPC_LOST = "what a remote call runs is in traces of its own"
NOT_SHOWN = "{} shows no ranges of otel_recfn.record_function"

OPERATORS: Mapping[str, Detail] = {
    "forward_thread_id": Detail("RecordFunction::forwardThreadId", "forward thread ids are 0"),
    "debug_handle": Detail("RecordFunction::debugHandle", "debug handles are left out"),
    "async": Detail("RecordFunction::isAsync", "asynchronous ranges are not marked"),
    "nccl_meta": Detail("RecordFunction::isNcclMeta", "ranges that collect NCCL metadata are not marked"),
    "static_runtime": Detail("RecordFunction::isStaticRuntimeOutVariant", "Static Runtime's out variants are not marked"),
    "node_id": Detail("RecordFunction::getDefaultNodeId", "node ids are the program's own"),
    "set_node_id": Detail(
        "RecordFunction::setDefaultNodeId", "PyTorch's own profilers don't know the node id that the program sets"
    ),
    "shapes": Detail(
        "RecordFunction::inputs, IValue, TensorImpl::has_symbolic_sizes_strides", "shapes and dtypes of inputs are not recorded"
    ),
    "flops": Detail("RecordFunction::inputs, IValue", "floating point operations are not counted"),
    "torchscript_stack": Detail(
        "torch::jit::currentCallstack, StackEntry::filename",
        "stacks of TorchScript's operators are those of the Python code that called them",
    ),
    "memory": Detail(
        "ThreadLocalDebugInfo::_push, ProfilerStateBase::reportMemoryUsage", "what operators allocate and free is not recorded"
    ),
    "local_callbacks": Detail(
        "get_record_function_tls_, set_record_function_tls_",
        "legacy profiler runs see no operators that PyTorch runs in threads of its own",
    ),
    "callback_list": Detail("hasGlobalCallbacks", "a process that forks while observers are switched may hang in the child"),
    "other_observers": Detail(
        "getStepCallbacksUnlessEmpty, StepCallbacks::callbacks_",
        "torch.profiler shows no ranges of otel_recfn.record_function while PyTorch is observed",
    ),
    "launches": Detail(
        "ThreadLocalPythonObjects, SafePyObject", "what PyTorch runs in threads of its own is in traces of their own"
    ),
    "concrete_inputs": Detail("IValue::toComplexDouble, toListRef", "the numbers among operators' inputs are not told"),
}
"""Of the observer, in C++."""

CALLBACKS: Mapping[str, Detail] = {
    **{
        name: OPERATORS[name]
        for name in ("forward_thread_id", "debug_handle", "async", "nccl_meta", "static_runtime", "callback_list")
    },
    "inputs": Detail("RecordFunction::inputs", "inputs() is always empty"),
    "kwinputs": Detail("RecordFunction::kwinputs", "kwinputs() is always empty"),
    "outputs": Detail("RecordFunction::outputs", "outputs() is always empty"),
    "counts": Detail("RecordFunction::num_inputs, num_outputs", "num_inputs() and num_outputs() are 0"),
    "needs": Detail("RecordFunction::needsInputs, needsOutputs", "needs_inputs() and needs_outputs() are False"),
    "active": Detail("RecordFunction::isActive", "is_active() is always True"),
    "operator_names": Detail("OperatorName::name, overload_name", "operator_name() is always None"),
    "schemas": Detail("RecordFunction::operator_schema", "operator_schema() is always None"),
    "tensors": Detail("THPVariable_Wrap, Tensor::variable_data", "tensors show as their kind"),
    "own_tensors": Detail(
        "PyObjectSlot::load_pyobj (2.13), _unchecked_untagged_pyobj (before)",
        "callbacks get other objects that share the tensors' data",
    ),
    "lists": Detail("IValue::toListRef, toTupleRef", "lists in callbacks are made by PyTorch, with its own tensors"),
    "values": Detail("torch::jit::toPyObject", "other values than tensors show as their kind"),
    "thread_callbacks": Detail(
        "set_record_function_tls_, sorted_tls_callbacks_",
        "a thread's own callbacks see only Python ranges, none of PyTorch's operators",
    ),
    "seed": Detail("set_record_function_seed_for_testing", "a seed has no effect on operators"),
}
"""Of callbacks in Python, in C++."""

PYTHON: Mapping[str, Detail] = {
    "module_call": Detail(
        "torch.nn.modules.module:Module._wrapped_call_impl",
        "module calls are not recorded, and traced ones are called as their code is",
    ),
    "module_call_impl": Detail(
        "torch.nn.modules.module:Module._call_impl",
        "with CPython 3.11, calls that a class's own __call__ hands on are not recorded",
    ),
    "frame_observer": Detail(
        "torch._C._dynamo:eval_frame.set_eval_frame", "torch.compile compiles what is done at module calls, too"
    ),
    "step_code": Detail(
        "torch.optim.optimizer:Optimizer._optimizer_step_code", "parameters of optimizers whose steps are traced are not shown"
    ),
    "step_pre_hook": Detail(
        "torch.optim.optimizer:register_optimizer_step_pre_hook",
        "optimizer steps are recorded only where PyTorch's operators are",
    ),
    "step_hook": Detail(
        "torch.optim.optimizer:register_optimizer_step_post_hook",
        "optimizer steps are recorded only where PyTorch's operators are",
    ),
    "is_compiling": Detail("torch.compiler:is_compiling", "module calls and optimizer steps are not recorded"),
    "is_tracing": Detail("torch.jit:is_tracing", "module calls that torch.jit.trace makes are recorded"),
    "stopped_recomputation": Detail(
        "torch.utils.checkpoint:_StopRecomputationError", "ranges that a checkpoint stops early are recorded as errors"
    ),
    "profiler_start": Detail(
        "torch.autograd.profiler:_run_on_profiler_start", "memory is recorded within PyTorch's operators only"
    ),
    "legacy_profiler_start": Detail(
        "torch.autograd:_enable_profiler_legacy", "memory is recorded within PyTorch's operators only"
    ),
    "profiler_enable": Detail("torch.autograd.profiler:_enable_profiler", NOT_SHOWN.format("torch.profiler")),
    "profiler_disable": Detail("torch.autograd.profiler:_disable_profiler", NOT_SHOWN.format("torch.profiler")),
    "legacy_profiler_stop": Detail("torch.autograd:_disable_profiler_legacy", NOT_SHOWN.format("PyTorch's legacy profiler")),
    "execution_trace_enable": Detail(
        "torch.profiler.profiler:_enable_execution_trace_observer", NOT_SHOWN.format("ExecutionTraceObserver")
    ),
    "execution_trace_disable": Detail(
        "torch.profiler.profiler:_disable_execution_trace_observer", NOT_SHOWN.format("ExecutionTraceObserver")
    ),
    "backward": Detail(
        "torch.autograd.variable:Variable._execution_engine",
        "a backward pass in threads of PyTorch's lies in what was current at its task's last operator",
    ),
    "future": Detail("torch._C:Future", "what a collective's future calls back in gloo's thread is in traces of its own"),
    "rpc_pickler": Detail("torch.distributed.rpc.internal:_internal_rpc_pickler", RPC_LOST),
    "rpc_call": Detail("torch.distributed.rpc.internal:PythonUDF", RPC_LOST),
    "thread_switch": Detail(
        "torch.autograd:_enable_record_function", "PyTorch's operators are announced also where RecordFunction is switched off"
    ),
    "carries": Detail("torch._C:_stash_obj_in_tls", "in PyTorch's own threads, callbacks of a thread see no Python ranges"),
    "parse_schema": Detail("torch._C:parse_schema", "operator_schema() gives the schema's text"),
    "sequence_nr": Detail("torch._C._autograd:_get_sequence_nr", "ranges of generated wrappers have no sequence numbers"),
    "compile_tables": Detail(
        "torch._dynamo.variables.builder:VariableBuilder._id_dispatch",
        "torch.compile breaks its graphs at otel-recfn's ranges, and refuses them with fullgraph=True",
    ),
}
"""Of our Python code, which asks ``find`` for them."""


def find(name: str) -> Any:
    """The detail of PYTHON of this name, or None, which is logged once. Its module must have been imported."""
    found = _look_up(PYTHON[name])
    if found is None:
        _tell_once(losses([name], PYTHON))
    return found


def missing_in_python() -> list[str]:
    """Names in PYTHON that this PyTorch lacks, among the modules that are imported."""
    return [name for name, detail in PYTHON.items() if detail.place[0] in sys.modules and _look_up(detail) is None]


def found_and_missing(told: str) -> tuple[list[str], list[str]]:
    """What a library told of itself: names, with a minus sign before those that were not found."""
    words = told.split()
    return [word for word in words if not word.startswith("-")], [word[1:] for word in words if word.startswith("-")]


def losses(missing: Iterable[str], details: Mapping[str, Detail]) -> str:
    """What is lost without these, for people."""
    return "; ".join([f"{details[name].lost} (it has no {details[name].what})" for name in missing])


def tell_losses(told: str, details: Mapping[str, Detail]) -> None:
    """Log what a library that was just loaded didn't find, in one line; nothing where it found all."""
    _, missing = found_and_missing(told)
    if missing:
        _tell_once(losses(missing, details))


@cache
def _tell_once(lost: str) -> None:
    log.warning("this PyTorch differs from those that otel-recfn knows: %s", lost)


def _look_up(detail: Detail) -> Any:
    module, path = detail.place
    found: Any = sys.modules.get(module)
    for attribute in path.split("."):
        found = getattr(found, attribute, None)
    return found
