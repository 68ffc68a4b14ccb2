// The extension module otel_recfn._native: each part adds its own functions and types.

#include "core/registry.hpp"
#include "cpython/python.hpp"

namespace recfn {

// The upper halves of x86's vector registers, which igzip's assembly leaves in use.
//
// As long as they are, each SSE instruction of the thread has to merge its result into them, and so
// waits for whatever wrote them last. Compilers clear them where they have used them. Without that,
// a thread that had once compressed a few bytes took 2.7 times as long for each of PyTorch's small
// operators from then on: the program's own, where it had asked for a trace.

namespace {

PyObject* zero_upper_vectors(PyObject*, PyObject*) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx")) asm volatile("vzeroupper");
#endif
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"zero_upper_vectors", zero_upper_vectors, METH_NOARGS,
     "zero_upper_vectors() -> None\n\nClear the upper halves of this thread's vector registers."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

// What each part adds is written where it is defined, in the folders. They return 0, or -1 with a
// Python error set.
// clang-format off
#define RECFN_PARTS(PART)        \
  PART(add_recorder)             \
  PART(add_recorder_hooks)       \
  PART(add_sampling)             \
  PART(add_ranges)               \
  PART(add_task_entries)         \
  PART(add_context_functions)    \
  PART(add_record_function_type) \
  PART(add_range_observer)       \
  PART(add_watched_calls)        \
  PART(add_call_tracer)          \
  PART(add_call_events)          \
  PART(add_gathering)            \
  PART(add_stage_type)           \
  PART(add_links_type)           \
  PART(add_own_traces_type)      \
  PART(add_chrome_encoder)       \
  PART(add_otlp_encoder)         \
  PART(add_metrics)
// clang-format on
#define RECFN_DECLARE(add) int add(PyObject* module);
#define RECFN_NAME(add) add,
RECFN_PARTS(RECFN_DECLARE)

namespace {

constexpr int (*kParts[])(PyObject*) = {RECFN_PARTS(RECFN_NAME)};

// What is recorded belongs to the process, and taking the GIL for a thread knows only the main
// interpreter.
int add_parts(PyObject* module) {
  if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
    PyErr_SetString(
        PyExc_ImportError,
        "otel-recfn records in the main interpreter only, and this is a subinterpreter");
    return -1;
  }
  prepare_for_exceptions();
  for (const auto add : kParts) {
    if (add(module) < 0) return -1;
  }
  return 0;
}

PyModuleDef_Slot slots[] = {{Py_mod_exec, reinterpret_cast<void*>(add_parts)},
#ifdef Py_mod_multiple_interpreters
                            // So that our own refusal is what one reads.
                            {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
                            {0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                          "otel_recfn._native",
                          "Recorder and encoders of otel-recfn.",
                          0,
                          functions,
                          slots,
                          nullptr,
                          nullptr,
                          nullptr};

}  // namespace
}  // namespace recfn

// In two phases: only then is each interpreter's import asked, and not given what another one's
// import left.
PyMODINIT_FUNC PyInit__native() { return PyModuleDef_Init(&recfn::definition); }
