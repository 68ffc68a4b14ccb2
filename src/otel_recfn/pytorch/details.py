"""The details of PyTorch that we rely on beyond what has not changed in years: the place to read
when a new PyTorch comes.

Each detail is looked for where it is used, and its absence costs what is said here and nothing
else. In C++ that happens when our libraries are compiled (``native/pytorch/features.hpp``); they
say what they found, by the names below. Nothing works without RecordFunction, its callbacks, their
registration in C++ and its switch; IValue and Tensor.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

from otel_recfn.support.logs import log


class Detail(NamedTuple):
    """A detail of PyTorch's."""

    what: str
    """The detail by PyTorch's names. In Python: ``module:attribute``."""
    lost: str
    """The loss if this PyTorch lacks it."""
    before: str = ""
    """The attribute's name in earlier PyTorchs."""
    since: tuple[int, int] = (2, 4)
    """The first PyTorch that has it: earlier ones do without."""

    @property
    def location(self) -> tuple[str, str]:
        """The module of a detail in Python, and the path of the attribute in it."""
        module, _, path = self.what.partition(":")
        return module, path


RPC_LOST = "what a remote call runs is in traces of its own"
NOT_PROPAGATED = "in PyTorch's own threads, callbacks of a thread see no Python ranges"
NOT_EXPOSED = "{} shows no ranges of otel_recfn.record_function"

OPERATORS: Mapping[str, Detail] = {
    "torchscript_stack": Detail(
        "torch::jit::currentCallstack, StackEntry::filename",
        "stacks of TorchScript's operators are those of the Python code that called them",
    ),
    "memory": Detail(
        "ThreadLocalDebugInfo::_push, ProfilerStateBase::reportMemoryUsage",
        "what operators allocate and free is not recorded",
    ),
    "launches": Detail(
        "ThreadLocalPythonObjects, SafePyObject",
        "what PyTorch runs in threads of its own is in traces of their own",
    ),
}
"""The details that the observer needs, in C++."""

CALLBACKS: Mapping[str, Detail] = {
    "own_tensors": Detail(
        "PyObjectSlot::load_pyobj (2.13), _unchecked_untagged_pyobj (before)",
        "callbacks get other objects that share the tensors' data",
    ),
}
"""The details that callbacks in Python need, in C++."""

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
        "torch._C._dynamo:eval_frame.set_eval_frame",
        "torch.compile compiles what is done at calls, too",
    ),
    "step_code": Detail(
        "torch.optim.optimizer:Optimizer._optimizer_step_code",
        "parameters of optimizers whose steps are traced are not shown",
    ),
    "hooked_step": Detail(
        "torch.optim.optimizer:Optimizer._patch_step_function",
        "module calls before the first optimizer's step are traces each",
    ),
    "step_hook": Detail(
        "torch.optim.optimizer:register_optimizer_step_post_hook",
        "validation after a step is not told from training",
    ),
    "scaled_step": Detail(
        "torch.amp.grad_scaler:GradScaler.step",
        "iterations whose optimizer step a GradScaler skips are parts of the next step",
    ),
    "scaled_step_impl": Detail(
        "torch.amp.grad_scaler:GradScaler._maybe_opt_step",
        "with CPython 3.11, iterations whose optimizer step a GradScaler skips are parts of the"
        " next step",
    ),
    "is_compiling": Detail("torch.compiler:is_compiling", "module calls are not recorded"),
    "has_function_modes": Detail(
        "torch._C:_is_torch_function_mode_enabled",
        "shapes of what models are called with are not told, and generation isn't",
    ),
    "is_tracing": Detail(
        "torch.jit:is_tracing", "module calls that torch.jit.trace makes are recorded"
    ),
    "graph_task": Detail(
        "torch._C:_current_graph_task_id",
        "modules that a checkpoint calls again have no path in their model",
    ),
    "stopped_recomputation": Detail(
        "torch.utils.checkpoint:_StopRecomputationError",
        "ranges that a checkpoint stops early are recorded as errors",
    ),
    "profiler_start": Detail(
        "torch.autograd.profiler:_run_on_profiler_start",
        "memory is recorded within PyTorch's operators only",
    ),
    "legacy_profiler_start": Detail(
        "torch.autograd:_enable_profiler_legacy",
        "memory is recorded within PyTorch's operators only",
    ),
    "profiler_enable": Detail(
        "torch.autograd.profiler:_enable_profiler", NOT_EXPOSED.format("torch.profiler")
    ),
    "profiler_disable": Detail(
        "torch.autograd.profiler:_disable_profiler", NOT_EXPOSED.format("torch.profiler")
    ),
    "legacy_profiler_stop": Detail(
        "torch.autograd:_disable_profiler_legacy", NOT_EXPOSED.format("PyTorch's legacy profiler")
    ),
    "execution_trace_enable": Detail(
        "torch.profiler.profiler:_enable_execution_trace_observer",
        NOT_EXPOSED.format("ExecutionTraceObserver"),
    ),
    "execution_trace_disable": Detail(
        "torch.profiler.profiler:_disable_execution_trace_observer",
        NOT_EXPOSED.format("ExecutionTraceObserver"),
    ),
    "backward": Detail(
        "torch.autograd.variable:Variable._execution_engine",
        "a backward pass in threads of PyTorch's lies in what was current at its task's last"
        " operator",
    ),
    "future": Detail(
        "torch._C:Future",
        "what a collective's future calls back in gloo's thread is in traces of its own",
    ),
    "rpc_pickler": Detail("torch.distributed.rpc.internal:_internal_rpc_pickler", RPC_LOST),
    "rpc_call": Detail("torch.distributed.rpc.internal:PythonUDF", RPC_LOST),
    "thread_switch": Detail(
        "torch.autograd:_enable_record_function",
        "PyTorch's operators are announced also where RecordFunction is switched off",
    ),
    "propagated_put": Detail("torch._C:_stash_obj_in_tls", NOT_PROPAGATED),
    "propagated_has": Detail("torch._C:_is_key_in_tls", NOT_PROPAGATED),
    "propagated_get": Detail("torch._C:_get_obj_in_tls", NOT_PROPAGATED),
    "carried_remove": Detail(
        "torch._C:_remove_obj_from_tls",
        "a thread with callbacks that ends as the process does may abort it",
        since=(2, 13),
    ),
    "parse_schema": Detail("torch._C:parse_schema", "operator_schema() gives the schema's text"),
    "sequence_nr": Detail(
        "torch._C._autograd:_get_sequence_nr",
        "ranges of generated wrappers have no sequence numbers",
    ),
    "compile_frame": Detail(
        "torch._dynamo.convert_frame:_compile", "compilations are shown by their phases alone"
    ),
    "compile_phase": Detail(
        "torch._dynamo.utils:compile_time_record_function",
        "compilations are shown without their phases",
        since=(2, 13),
    ),
    "compile_id": Detail(
        "torch._guards:CompileContext.current_compile_id",
        "compilations of backward graphs have no id",
    ),
    "compile_counters": Detail(
        "torch._dynamo.utils:counters",
        "compilations don't say why the graph broke, and what they found in caches",
    ),
    "recompile_reasons": Detail(
        "torch._dynamo.convert_frame:get_and_maybe_log_recompilation_reasons",
        "compilations don't say why there is another one",
        before="get_and_maybe_log_recompilation_reason",
    ),
    "graph_break": Detail(
        "torch._dynamo.exc:Unsupported", "functions that can't be compiled are shown as errors"
    ),
    "frame_around": Detail(
        "torch._dynamo.external_utils:wrap_inline",
        "compilations of PyTorch's own modules and functions are called `inner`",
    ),
    "profiler_runs": Detail(
        "torch.autograd.profiler:_is_profiler_enabled",
        "beside torch.profiler, phases of compilations are shown twice",
    ),
    "compile_tables": Detail(
        "torch._dynamo.variables.builder:VariableBuilder._id_dispatch",
        "torch.compile breaks its graphs at otel-recfn's ranges, and refuses them with"
        " fullgraph=True",
    ),
}
"""The details that our Python code needs, which asks ``find`` for them."""


def find(name: str) -> Any:
    """The detail of PYTHON of this name, or None, which is logged once.

    Its module must have been imported.
    """
    found = _look_up(PYTHON[name])
    if found is None and _is_expected(PYTHON[name]):
        _log_once(losses([name], PYTHON))
    return found


def owner_and_name(name: str) -> tuple[Any, str]:
    """The object that has the detail of PYTHON of this name, or None, and the attribute's name
    in this PyTorch.
    """
    return _owner_and_name(PYTHON[name])


def missing_in_python() -> list[str]:
    """The names in PYTHON that this PyTorch lacks, among the modules that are imported."""
    there = {
        name: detail
        for name, detail in PYTHON.items()
        if detail.location[0] in sys.modules and _is_expected(detail)
    }
    return [name for name, detail in there.items() if _look_up(detail) is None]


def found_and_missing(features: str) -> tuple[list[str], list[str]]:
    """The names that a library found, and those that it didn't, which have a minus sign in
    ``features``.
    """
    words = features.split()
    return [word for word in words if not word.startswith("-")], [
        word[1:] for word in words if word.startswith("-")
    ]


def losses(missing: Iterable[str], details: Mapping[str, Detail]) -> str:
    """The losses without these details, in words."""
    return "; ".join([f"{details[name].lost} (it has no {details[name].what})" for name in missing])


def log_losses(features: str, details: Mapping[str, Detail]) -> None:
    """Log the details that a library which was just loaded didn't find, in one line, if there
    are any.
    """
    _, missing = found_and_missing(features)
    if missing:
        _log_once(losses(missing, details))


def _is_expected(detail: Detail) -> bool:
    version = re.match(r"(\d+)\.(\d+)", str(getattr(sys.modules.get("torch"), "__version__", "")))
    return version is None or (int(version[1]), int(version[2])) >= detail.since


@cache
def _log_once(lost: str) -> None:
    log.warning("this PyTorch differs from those that otel-recfn knows: %s", lost)


def _look_up(detail: Detail) -> Any:
    owner, attribute = _owner_and_name(detail)
    return getattr(owner, attribute, None)


def _owner_and_name(detail: Detail) -> tuple[Any, str]:
    module, path = detail.location
    owner: Any = sys.modules.get(module)
    *owners, attribute = path.split(".")
    for each in owners:
        owner = getattr(owner, each, None)
    return owner, detail.before if detail.before and not hasattr(owner, attribute) else attribute
