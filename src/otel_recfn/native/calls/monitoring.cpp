#include "calls/monitoring.hpp"

#include <frameobject.h>

#include "calls/enter_leave.hpp"
#include "cpython/made.hpp"

namespace recfn {
namespace {

using Arguments = PyObject* const*;

// `sys.monitoring.MISSING`: there is no first argument. CPython never frees it.
const PyObject* missing = nullptr;

// CPython's own, because to ask for the frame object makes one.
[[gnu::always_inline]] inline const void* running_frame([[maybe_unused]] PyThreadState* thread) {
#if PY_VERSION_HEX >= 0x030D0000
  return thread->current_frame;
#elif PY_VERSION_HEX >= 0x030C0000
  return thread->cframe->current_frame;
#else
  return PyEval_GetFrame();
#endif
}

PyObject* answer(int result) { return result < 0 ? nullptr : Py_NewRef(Py_None); }

// The thread's calls, where it is traced from now on; null where it isn't, with the error set or not.
[[gnu::noinline]] ThreadCalls* meet(bool is_python) {
  ThreadCalls* calls = thread_calls(tracer->tracing);
  if (calls == nullptr || calls->left_out) return nullptr;
  const void* const key = is_python ? running_frame(PyThreadState_Get()) : nullptr;
  if (tracer->forked) return enter_after_fork(*calls, {is_python ? ThreadCalls::kHidden : ThreadCalls::kOfC, key}), nullptr;
  if (calls->buffer != nullptr) return calls;
  PyFrameObject* const frame = PyEval_GetFrame();
  const Made back(is_python && frame != nullptr ? reinterpret_cast<PyObject*>(PyFrame_GetBack(frame)) : nullptr);
  return meet_thread(*calls, is_python ? reinterpret_cast<PyFrameObject*>(back.object) : frame) > 0 ? calls : nullptr;
}

[[gnu::always_inline]] inline ThreadCalls* calls_for_begin(bool is_python) {
  ThreadCalls* const calls = ready_calls();
  return __builtin_expect(calls != nullptr, 1) || !tracer->is_on() ? calls : meet(is_python);
}

// Also in a child whose hooks haven't run yet.
[[gnu::always_inline]] inline ThreadCalls* calls_for_end() {
  ThreadCalls* const calls = tls_calls;
  return calls != nullptr && tracer->is_on() && calls->met_in == tracer->tracing ? calls : nullptr;
}

PyObject* without_calls() { return answer(PyErr_Occurred() ? -1 : 0); }

[[gnu::hot]] PyObject* on_begin(PyObject*, Arguments arguments, size_t, PyObject*) {
  ThreadCalls* const calls = calls_for_begin(true);
  if (__builtin_expect(calls == nullptr, 0)) return without_calls();
  auto* const code = reinterpret_cast<PyCodeObject*>(arguments[0]);
  const int instruction = (code->co_flags & kCanSuspend) != 0 ? static_cast<int>(PyLong_AsLong(arguments[1])) : kAtBegin;
  PyThreadState* const thread = PyThreadState_Get();
  return answer(enter(*calls, {code, instruction, nullptr, running_frame(thread), thread}));
}

[[gnu::hot]] PyObject* on_end(PyObject*, Arguments, size_t, PyObject*) {
  if (ThreadCalls* const calls = calls_for_end()) leave_python(*calls, running_frame(PyThreadState_Get()));
  Py_RETURN_NONE;
}

[[gnu::always_inline]] inline CFunction called(Arguments arguments) {
  if (Py_TYPE(arguments[2]) == &PyFunction_Type) return {};  // most are, and have events of their own
  return CFunction::of(arguments[2], arguments[3] != missing ? arguments[3] : nullptr);
}

[[gnu::hot]] PyObject* on_begin_of_c(PyObject*, Arguments arguments, size_t, PyObject*) {
  const CFunction function = called(arguments);
  if (function.definition == nullptr) Py_RETURN_NONE;
  ThreadCalls* const calls = calls_for_begin(false);
  if (__builtin_expect(calls == nullptr, 0)) return without_calls();
  return answer(enter_c(*calls, arguments[2], function));
}

[[gnu::hot]] PyObject* on_end_of_c(PyObject*, Arguments arguments, size_t, PyObject*) {
  ThreadCalls* const calls = calls_for_end();
  if (calls != nullptr && called(arguments).definition != nullptr) leave_c(*calls);
  Py_RETURN_NONE;
}

// What CPython calls without anything between: of a builtin function it would look at keywords and at the depth of recursion first.
struct Callback {
  PyObject_HEAD
  vectorcallfunc function;
};

void free_callback(PyObject* callback) { PyObject_Free(callback); }

PyTypeObject* callback_type() {
  static PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  if (type.tp_basicsize != 0) return &type;
  type.tp_name = "otel_recfn._native.MonitoringCallback", type.tp_basicsize = sizeof(Callback);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION;
  type.tp_vectorcall_offset = offsetof(Callback, function), type.tp_call = PyVectorcall_Call;
  type.tp_dealloc = free_callback;
  return PyType_Ready(&type) == 0 ? &type : nullptr;
}

PyObject* callback_of(vectorcallfunc function) {
  PyTypeObject* const type = callback_type();
  Callback* const made = type != nullptr ? PyObject_New(Callback, type) : nullptr;
  if (made != nullptr) made->function = function;
  return reinterpret_cast<PyObject*>(made);
}

bool add(PyObject* callbacks, vectorcallfunc of_event, std::initializer_list<const char*> events) {
  const Made function(callback_of(of_event));
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
  const bool made = callbacks != nullptr && add(callbacks, on_begin, {"PY_START", "PY_RESUME", "PY_THROW"}) &&
                    add(callbacks, on_end, {"PY_RETURN", "PY_YIELD", "PY_UNWIND"}) && add(callbacks, on_begin_of_c, {"CALL"}) &&
                    add(callbacks, on_end_of_c, {"C_RETURN", "C_RAISE"});
  if (!made) Py_CLEAR(callbacks);
  return callbacks;
}

}  // namespace recfn
