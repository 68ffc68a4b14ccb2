#include "calls/monitoring.hpp"

#include <frameobject.h>

#include "calls/enter_leave.hpp"
#include "cpython/made.hpp"

namespace recfn {
namespace {

using Arguments = PyObject* const*;

// `sys.monitoring.MISSING`: there is no first argument. CPython never frees it.
const PyObject* missing = nullptr;

[[gnu::always_inline]] inline ThreadCalls* met_thread() {
  ThreadCalls* const calls = tls_calls;
  return calls != nullptr && calls->tracing == tracer->tracing && calls->buffer != nullptr ? calls : nullptr;
}

PyObject* answer(int result) { return result < 0 ? nullptr : Py_NewRef(Py_None); }

// The thread's calls, where it is traced from now on; null where it isn't, with the error set or not.
[[gnu::noinline]] ThreadCalls* meet(bool is_python) {
  ThreadCalls* calls = thread_calls(tracer->tracing);
  if (calls == nullptr || calls->left_out) return nullptr;
  if (tracer->forked) return enter_after_fork(*calls, is_python ? ThreadCalls::kHidden : ThreadCalls::kOfC), nullptr;
  if (calls->buffer != nullptr) return calls;
  PyFrameObject* const frame = PyEval_GetFrame();
  const Made back(is_python && frame != nullptr ? reinterpret_cast<PyObject*>(PyFrame_GetBack(frame)) : nullptr);
  return meet_thread(*calls, is_python ? reinterpret_cast<PyFrameObject*>(back.object) : frame) > 0 ? calls : nullptr;
}

[[gnu::always_inline]] inline ThreadCalls* calls_for_begin(bool is_python) {
  ThreadCalls* const calls = met_thread();
  return __builtin_expect(calls != nullptr && !tracer->forked, 1) ? calls : meet(is_python);
}

PyObject* on_begin(PyObject*, Arguments arguments, Py_ssize_t) {
  if (!tracer->is_on()) Py_RETURN_NONE;
  ThreadCalls* const calls = calls_for_begin(true);
  if (calls == nullptr) return answer(PyErr_Occurred() ? -1 : 0);
  auto* const code = reinterpret_cast<PyCodeObject*>(arguments[0]);
  const int instruction = (code->co_flags & kCanSuspend) != 0 ? static_cast<int>(PyLong_AsLong(arguments[1])) : kAtBegin;
  return answer(enter(*calls, {code, instruction, nullptr}));
}

PyObject* on_end(PyObject*, Arguments, Py_ssize_t) {
  ThreadCalls* const calls = met_thread();
  if (tracer->is_on() && calls != nullptr) leave_python(*calls);
  Py_RETURN_NONE;
}

CFunction called(Arguments arguments) {
  return CFunction::of(arguments[2], arguments[3] != missing ? arguments[3] : nullptr);
}

PyObject* on_begin_of_c(PyObject*, Arguments arguments, Py_ssize_t) {
  const CFunction function = called(arguments);
  if (!tracer->is_on() || function.definition == nullptr) Py_RETURN_NONE;
  ThreadCalls* const calls = calls_for_begin(false);
  if (calls == nullptr) return answer(PyErr_Occurred() ? -1 : 0);
  return answer(enter_c(*calls, arguments[2], function));
}

PyObject* on_end_of_c(PyObject*, Arguments arguments, Py_ssize_t) {
  ThreadCalls* const calls = met_thread();
  if (tracer->is_on() && calls != nullptr && called(arguments).definition != nullptr) leave_c(*calls);
  Py_RETURN_NONE;
}

template <PyObject* (*function)(PyObject*, Arguments, Py_ssize_t)>
PyMethodDef callback(const char* name) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function)), METH_FASTCALL, nullptr};
}

PyMethodDef of_begin = callback<on_begin>("on_begin"), of_end = callback<on_end>("on_end");
PyMethodDef of_c_begin = callback<on_begin_of_c>("on_begin_of_c"), of_c_end = callback<on_end_of_c>("on_end_of_c");

bool add(PyObject* callbacks, PyMethodDef& definition, std::initializer_list<const char*> events) {
  const Made function(PyCFunction_New(&definition, nullptr));
  if (function.object == nullptr) return false;
  for (const char* event : events) {
    if (PyDict_SetItemString(callbacks, event, function.object) < 0) return false;
  }
  return true;
}

}  // namespace

PyObject* monitoring_callbacks() {
  PyObject* monitoring = PySys_GetObject("monitoring");
  if (monitoring == nullptr) return PyErr_Format(PyExc_RuntimeError, "this CPython has no sys.monitoring");
  const Made none(PyObject_GetAttrString(monitoring, "MISSING"));
  missing = none.object;
  PyObject* callbacks = missing != nullptr ? PyDict_New() : nullptr;
  const bool made = callbacks != nullptr && add(callbacks, of_begin, {"PY_START", "PY_RESUME", "PY_THROW"}) &&
                    add(callbacks, of_end, {"PY_RETURN", "PY_YIELD", "PY_UNWIND"}) && add(callbacks, of_c_begin, {"CALL"}) &&
                    add(callbacks, of_c_end, {"C_RETURN", "C_RAISE"});
  if (!made) Py_CLEAR(callbacks);
  return callbacks;
}

}  // namespace recfn
