// What the recorder, which knows no Python, calls in Python: the one table of it.
#include "core/registry.hpp"
#include "cpython/python.hpp"
#include "parents/tasks/context_reader.hpp"
#include "parents/tasks/task_contexts.hpp"
#include "parents/tasks/propagation.hpp"
#include "python/failures.hpp"
#include "python/python_stack.hpp"

namespace recfn {
namespace {

constexpr RecorderHooks make_hooks(bool reads_contexts) {
  RecorderHooks hooks;
  hooks.read_context = reads_contexts ? read_context : nullptr;
  hooks.may_have_been_suspended = may_have_been_suspended;
  hooks.handled_exception = handled_exception;
  hooks.end_failed = end_failed;
  hooks.propagate_now = propagate_now;
  hooks.release = release_later;
  hooks.note_torchs_id = [](ThreadBuffer& buffer) { registry().note_torchs_id(buffer); };
  hooks.read_stack = python_stack_with_gil;
  return hooks;
}

constexpr RecorderHooks kHooks = make_hooks(false);
constexpr RecorderHooks kHooksWithContexts = make_hooks(true);

PyObject* set_context_reader(PyObject*, PyObject* args) {
  ContextReaders readers;
  if (!PyArg_ParseTuple(args, "OOO", &readers.current, &readers.thread, &readers.is_the_programs)) {
    return nullptr;
  }
  if (!set_context_readers(readers)) return nullptr;
  globals().recorder.store(has_context_readers() ? &kHooksWithContexts : &kHooks);
  globals().context_version.store(has_context_readers() ? context_version : nullptr);
  Py_RETURN_NONE;
}

PyMethodDef hook_functions[] = {
    {"set_context_reader", set_context_reader, METH_VARARGS,
     "set_context_reader(reader | None, thread_noter | None, is_the_programs)"},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int add_recorder_hooks(PyObject* module) {
  globals().recorder.store(&kHooks);
  return PyModule_AddFunctions(module, hook_functions);
}

}  // namespace recfn
