// The extension module otel_recfn._native: each part adds its own functions and types.
#include "cpython/parts.hpp"
#include "columns/gathered_rows.hpp"
#include "core/exceptions.hpp"
#include "cpython/python.hpp"
#include "links/links_type.hpp"
#include "stage/stage_type.hpp"

namespace {

// What is recorded belongs to the process, and taking the GIL for a thread knows only the main interpreter.
int add_parts(PyObject* module) {
  if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
    PyErr_SetString(PyExc_ImportError, "otel-recfn records in the main interpreter only, and this is a subinterpreter");
    return -1;
  }
  recfn::prepare_for_exceptions();
  if (recfn::add_recorder(module) < 0 || recfn::add_chrome_encoder(module) < 0 || recfn::add_metrics(module) < 0) return -1;
  if (recfn::add_stage_type(module) < 0 || recfn::add_call_tracer(module) < 0 || recfn::add_otlp_encoder(module) < 0) return -1;
  if (recfn::add_gathering(module) < 0 || recfn::add_links_type(module) < 0) return -1;
  return recfn::add_vector_state(module);
}

PyModuleDef_Slot slots[] = {
    {Py_mod_exec, reinterpret_cast<void*>(add_parts)},
#ifdef Py_mod_multiple_interpreters
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},  // so that our own refusal is what one reads
#endif
    {0, nullptr}};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "otel_recfn._native", "Recorder and encoders of otel-recfn.", 0, nullptr, slots,
    nullptr, nullptr, nullptr};

}  // namespace

// In two phases: only then is each interpreter's import asked, and not given what another one's import left.
PyMODINIT_FUNC PyInit__native() { return PyModuleDef_Init(&definition); }
