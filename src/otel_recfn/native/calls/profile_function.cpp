// The profile function, before CPython 3.12: what it does at each call and return, and which
// threads have it.
#include "calls/tracer.hpp"
#include "cpython/python.hpp"

namespace recfn {

#if PY_VERSION_HEX < 0x030C0000

namespace {

// The frame's code object, borrowed.
[[gnu::always_inline]] inline PyCodeObject* code_of(PyFrameObject* frame) {
#if PY_VERSION_HEX >= 0x030B0000
  PyCodeObject* const code = PyFrame_GetCode(frame);
  Py_DECREF(code);
  return code;
#else
  return frame->f_code;
#endif
}

// Each kind of event has a function of its own, so that one doesn't save and restore the registers
// that another needs. What is seldom done has one, too, which goes on from there.
[[gnu::noinline]] int on_other_call(ThreadCalls& calls, PyFrameObject* frame) {
  PyCodeObject* const code = code_of(frame);
  const bool can_be_suspended = (code->co_flags & kCanSuspend) != 0;
  const int instruction = can_be_suspended ? instruction_of(frame) : kAtBegin;
  const KnownCall* const name = can_be_suspended ? recent_name(code, instruction) : nullptr;
  if (begin_known_python(calls, name, frame, PyThreadState_Get())) return 0;
  return enter_slowly(calls, {code, instruction, frame, frame});
}

[[gnu::noinline, gnu::hot]] int on_call(ThreadCalls& calls, PyFrameObject* frame) {
  const PyCodeObject* const code = code_of(frame);
  const PyThreadState* const thread = PyThreadState_Get();
  if (begin_known_python(calls, recent_name(code), frame, thread)) return 0;
  return on_other_call(calls, frame);
}

[[gnu::noinline]] int on_other_c_call(ThreadCalls& calls, PyObject* argument) {
  const CFunction function = CFunction::from_callable(argument, nullptr);
  return tracer->c_calls && function.definition != nullptr ? enter_c_slowly(calls, function) : 0;
}

// CPython is asked for the thread by another function, which calls this one last: so this one saves
// and restores no registers.
[[gnu::noinline, gnu::hot]] int on_called_function(PyObject* argument,
                                                   const PyThreadState* thread) {
  ThreadCalls& calls = *tls_calls;
  const bool is_usual = Py_TYPE(argument) == &PyCFunction_Type && tracer->c_calls;
  if (__builtin_expect(!is_usual, 0)) return on_other_c_call(calls, argument);
  const KnownCall* const known = recent_functions.find(CFunction::from_builtin(argument));
  return begin_known_c(calls, known, thread) ? 0 : on_other_c_call(calls, argument);
}

[[gnu::noinline, gnu::hot]] int on_c_call(PyObject* argument) {
  return on_called_function(argument, PyThreadState_Get());
}

[[gnu::noinline]] int on_other_return(ThreadCalls& calls, PyFrameObject* frame) {
  leave_python_slowly(calls, frame);
  return 0;
}

[[gnu::noinline, gnu::hot]] int on_return(ThreadCalls& calls, PyFrameObject* frame) {
  return end_known_python(calls, frame) ? 0 : on_other_return(calls, frame);
}

[[gnu::noinline]] int on_other_c_return(ThreadCalls& calls) {
  leave_c_slowly(calls);
  return 0;
}

[[gnu::noinline, gnu::hot]] int on_c_return(ThreadCalls& calls) {
  return end_known_c(calls) ? 0 : on_other_c_return(calls);
}

[[gnu::always_inline]] inline int on_event(ThreadCalls& calls, PyFrameObject* frame, int what,
                                           PyObject* argument) {
  static_assert(PyTrace_C_EXCEPTION == PyTrace_C_CALL + 1 &&
                PyTrace_C_RETURN == PyTrace_C_CALL + 2);
  if (what == PyTrace_C_CALL) return on_c_call(argument);
  if (what > PyTrace_C_CALL) return what <= PyTrace_C_RETURN ? on_c_return(calls) : 0;
  if (what == PyTrace_CALL) return on_call(calls, frame);
  return what == PyTrace_RETURN ? on_return(calls, frame) : 0;
}

// Where calls can't be recorded now, as in a child before its own hooks have run, or the thread
// hasn't been met: its first event may be the return of what was on its stack before.
[[gnu::noinline]] int on_event_elsewhere(PyFrameObject* frame, int what, PyObject* argument) {
  if (!tracer->is_on()) return 0;
  const bool begins = what == PyTrace_CALL || what == PyTrace_C_CALL;
  ThreadCalls* calls = tls_calls;
  const bool met = calls != nullptr && calls->met_in == tracer->tracing;
  if (begins || !met) calls = meet(frame, what == PyTrace_CALL ? frame : nullptr);
  if (calls == nullptr) return PyErr_Occurred() ? -1 : 0;
  return on_event(*calls, frame, what, argument);
}

// What `PyEval_SetProfile` takes. The object is of no use.
[[gnu::hot]] int on_profile_event(PyObject*, PyFrameObject* frame, int what, PyObject* argument) {
  ThreadCalls* const calls = ready_calls();
  if (__builtin_expect(calls == nullptr, 0)) return on_event_elsewhere(frame, what, argument);
  return on_event(*calls, frame, what, argument);
}

// A profile function in Python that puts the native one in its own place.
PyObject* profile_this_thread(PyObject*, PyObject*) {
  PyEval_SetProfile(tracer->is_on() ? on_profile_event : nullptr,
                    tracer->is_on() ? Py_None : nullptr);
  Py_RETURN_NONE;
}

// Or is about to have it: one that `threading` has just started sets it at its first event.
bool has_it(PyThreadState* thread) {
  if (thread->c_profilefunc == on_profile_event) return true;
  PyObject* const hook = thread->c_profileobj;
  return hook != nullptr && PyCFunction_Check(hook) &&
         PyCFunction_GetFunction(hook) == profile_this_thread;
}

// 1: the thread has another one, which it keeps, or had one for a while: what was open then is over
// as far as anybody knows.
int profile(PyThreadState* thread) {
  if (has_it(thread) || !tracer->is_on()) return 0;
  const uint64_t id = PyThreadState_GetID(thread);
  const bool has_other = thread->c_profilefunc != nullptr;
  const bool was_traced = end_thread_calls(id);
  if (has_other && !had_other_profile_function(id)) {
    tracer->with_other_profile_functions.push_back(id);
  }
  if (!has_other && _PyEval_SetProfile(thread, on_profile_event, Py_None) < 0) return -1;
  return was_traced || has_other ? 1 : 0;
}

void take_away() {
  each_thread([](PyThreadState* thread) {
    if (thread->c_profilefunc == on_profile_event &&
        _PyEval_SetProfile(thread, nullptr, nullptr) < 0) {
      PyErr_Clear();
    }
    return true;
  });
}

PyObject* profile_threads(PyObject*, PyObject*) {
  return guarded([]() -> PyObject* {
    bool others = false;
    const bool all = each_thread([&others](PyThreadState* thread) {
      const int other = profile(thread);
      others = others || other > 0;
      return other >= 0;
    });
    if (!tracer->is_on()) take_away();  // it was stopped while a thread's was set
    return all ? PyBool_FromLong(others) : nullptr;
  });
}

PyObject* unprofile_threads(PyObject*, PyObject*) {
  take_away();
  Py_RETURN_NONE;
}

PyMethodDef profile_functions[] = {
    {"profile_threads", profile_threads, METH_NOARGS,
     "profile_threads() -> whether threads have another profile function, and keep it, or had one "
     "for a while; those without one\n"
     "have ours now."},
    {"profile_this_thread", profile_this_thread, METH_VARARGS,
     "A profile function that puts the native one in its own place."},
    {"unprofile_threads", unprofile_threads, METH_NOARGS,
     "unprofile_threads(): takes ours away wherever it is."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int add_call_events(PyObject* module) { return PyModule_AddFunctions(module, profile_functions); }

#endif

}  // namespace recfn
