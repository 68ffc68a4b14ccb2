// What `sys.monitoring` (CPython 3.12 and later) calls at each call and return, in every thread.
#include "calls/tracer.hpp"
#include "cpython/python.hpp"

namespace recfn {

#if PY_VERSION_HEX >= 0x030C0000

namespace {

using Arguments = PyObject* const*;

// `sys.monitoring.MISSING`: there is no first argument. CPython never frees it.
const PyObject* missing = nullptr;

// CPython's own, because to ask for the frame object makes one.
[[gnu::always_inline]] inline const void* running_frame(PyThreadState* thread) {
#if PY_VERSION_HEX >= 0x030D0000
  return thread->current_frame;
#else
  return thread->cframe->current_frame;
#endif
}

PyObject* none() { return Py_None; }  // which is never freed, and needs no counting

PyObject* answer(int result) { return result < 0 ? nullptr : none(); }

// `key`: a Python call's, as `meet` takes it.
ThreadCalls* calls_for_begin(const void* key) {
  ThreadCalls* const calls = ready_calls();
  return calls != nullptr || !tracer->is_on() ? calls : meet(PyEval_GetFrame(), key);
}

// Also in a child whose hooks haven't run yet. What ends may be the first that is told of a thread.
ThreadCalls* calls_for_end() {
  ThreadCalls* const calls = tls_calls;
  if (calls != nullptr && tracer->is_on() && calls->met_in == tracer->tracing) return calls;
  return tracer->is_on() ? meet(PyEval_GetFrame(), nullptr) : nullptr;
}

PyObject* without_calls() { return answer(PyErr_Occurred() ? -1 : 0); }

// `argument`: the first one, null where there is none.
[[gnu::always_inline]] inline PyObject* first_argument(Arguments arguments) {
  return arguments[3] != missing ? arguments[3] : nullptr;
}

CFunction called(Arguments arguments) {
  return CFunction::from_callable(arguments[2], first_argument(arguments));
}

// What takes longer goes on in functions of its own, so that what is mostly done saves and restores
// no registers for it.
[[gnu::noinline]] PyObject* on_other_begin(Arguments arguments) {
  PyThreadState* const thread = PyThreadState_Get();
  const void* const frame = running_frame(thread);
  ThreadCalls* const calls = calls_for_begin(frame);
  if (calls == nullptr) return without_calls();
  auto* const code = reinterpret_cast<PyCodeObject*>(arguments[0]);
  const bool can_be_suspended = (code->co_flags & kCanSuspend) != 0;
  const int instruction =
      can_be_suspended ? static_cast<int>(PyLong_AsLong(arguments[1])) : kAtBegin;
  const KnownCall* const name = can_be_suspended ? recent_name(code, instruction) : nullptr;
  if (begin_known_python(*calls, name, frame, thread)) return none();
  return answer(enter_slowly(*calls, {code, instruction, nullptr, frame}));
}

[[gnu::hot]] PyObject* on_begin(PyObject*, Arguments arguments, size_t, PyObject*) {
  PyThreadState* const thread = PyThreadState_Get();
  if (ThreadCalls* const calls = ready_calls()) {
    const KnownCall* const name = recent_name(reinterpret_cast<PyCodeObject*>(arguments[0]));
    if (begin_known_python(*calls, name, running_frame(thread), thread)) return none();
  }
  return on_other_begin(arguments);
}

[[gnu::noinline]] PyObject* on_other_end() {
  ThreadCalls* const calls = calls_for_end();
  if (calls == nullptr) return without_calls();
  leave_python_slowly(*calls, running_frame(PyThreadState_Get()));
  return none();
}

[[gnu::hot]] PyObject* on_end(PyObject*, Arguments, size_t, PyObject*) {
  const void* const frame = running_frame(PyThreadState_Get());
  ThreadCalls* const calls = ready_calls();
  return calls != nullptr && end_known_python(*calls, frame) ? none() : on_other_end();
}

[[gnu::noinline]] PyObject* on_other_c_begin(Arguments arguments) {
  const CFunction function = called(arguments);
  if (function.definition == nullptr) return none();
  ThreadCalls* const calls = calls_for_begin(nullptr);
  return calls != nullptr ? answer(enter_c_slowly(*calls, function)) : without_calls();
}

// Of the two types that nearly all C functions are of; else without a definition.
[[gnu::always_inline]] inline CFunction usually_called(PyObject* callable, Arguments arguments) {
  if (Py_TYPE(callable) == &PyCFunction_Type) return CFunction::from_builtin(callable);
  if (Py_TYPE(callable) != &PyMethodDescr_Type) return {};
  return CFunction::from_method(callable, first_argument(arguments));
}

// CPython is asked for the thread by another function, which calls this one last: so this one saves
// and restores no registers.
[[gnu::noinline, gnu::hot]] PyObject* on_c_begin_in(const PyThreadState* thread,
                                                    Arguments arguments) {
  PyObject* const callable = arguments[2];
  const CFunction function = usually_called(callable, arguments);
  ThreadCalls* const calls = ready_calls();
  if (__builtin_expect(function.definition == nullptr || calls == nullptr, 0)) {
    return on_other_c_begin(arguments);
  }
  if (begin_known_c(*calls, recent_functions.find(function), thread)) return none();
  return on_other_c_begin(arguments);
}

[[gnu::hot]] PyObject* on_c_begin(PyObject*, Arguments arguments, size_t, PyObject*) {
  if (Py_TYPE(arguments[2]) == &PyFunction_Type) {
    // Most are, and have events of their own.
    return none();
  }
  return on_c_begin_in(PyThreadState_Get(), arguments);
}

[[gnu::noinline]] PyObject* on_other_c_end(Arguments arguments) {
  ThreadCalls* const calls = calls_for_end();
  if (calls == nullptr) return without_calls();
  if (called(arguments).definition != nullptr) leave_c_slowly(*calls);
  return none();
}

[[gnu::hot]] PyObject* on_c_end(PyObject*, Arguments arguments, size_t, PyObject*) {
  PyObject* const callable = arguments[2];
  const PyTypeObject* const type = Py_TYPE(callable);
  const bool is_usual =
      type == &PyCFunction_Type || (type == &PyMethodDescr_Type && arguments[3] != missing);
  ThreadCalls* const calls = ready_calls();
  const bool ended = is_usual && calls != nullptr && end_known_c(*calls);
  return ended ? none() : on_other_c_end(arguments);
}

// What CPython calls without anything between, by its vectorcall. Of a builtin function it would
// look at keywords and at the depth of recursion first, at each event: so the callbacks are objects
// of a type of ours.
struct Callback {
  PyObject_HEAD
  vectorcallfunc function;
};

void free_callback(PyObject* callback) { PyObject_Free(callback); }

PyTypeObject* callback_type() {
  static PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  if (type.tp_basicsize != 0) return &type;
  type.tp_name = "otel_recfn._native.MonitoringCallback";
  type.tp_basicsize = sizeof(Callback);
  type.tp_flags =
      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION;
  type.tp_vectorcall_offset = offsetof(Callback, function);
  type.tp_call = PyVectorcall_Call;
  type.tp_dealloc = free_callback;
  return PyType_Ready(&type) == 0 ? &type : nullptr;
}

PyObject* make_callback(vectorcallfunc function) {
  PyTypeObject* const type = callback_type();
  Callback* const made = type != nullptr ? PyObject_New(Callback, type) : nullptr;
  if (made != nullptr) made->function = function;
  return reinterpret_cast<PyObject*>(made);
}

bool add(PyObject* callbacks, vectorcallfunc on_event, std::initializer_list<const char*> events) {
  const Reference function(make_callback(on_event));
  if (!function) return false;
  for (const char* event : events) {
    if (PyDict_SetItemString(callbacks, event, function.get()) < 0) return false;
  }
  return true;
}

PyObject* monitoring_callbacks(PyObject*, PyObject* without_argument) {
  missing = without_argument;
  PyObject* callbacks = PyDict_New();
  const bool made =
      callbacks != nullptr && add(callbacks, on_begin, {"PY_START", "PY_RESUME", "PY_THROW"}) &&
      add(callbacks, on_end, {"PY_RETURN", "PY_YIELD", "PY_UNWIND"}) &&
      add(callbacks, on_c_begin, {"CALL"}) && add(callbacks, on_c_end, {"C_RETURN", "C_RAISE"});
  if (!made) Py_CLEAR(callbacks);
  return callbacks;
}

PyMethodDef monitoring_functions[] = {
    {"monitoring_callbacks", monitoring_callbacks, METH_O,
     "monitoring_callbacks(sys.monitoring.MISSING) -> callbacks by the names of its events."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int add_call_events(PyObject* module) {
  return PyModule_AddFunctions(module, monitoring_functions);
}

#endif

}  // namespace recfn
