// What the profile function does at each call and return.
#include <frameobject.h>

#include "calls/enter_leave.hpp"
#include "calls/profiled_threads.hpp"
#include "cpython/python.hpp"

namespace recfn {
namespace {

// Borrowed from the frame.
[[gnu::always_inline]] inline PyCodeObject* code_of(PyFrameObject* frame) {
#if PY_VERSION_HEX >= 0x030B0000
  PyCodeObject* const code = PyFrame_GetCode(frame);
  Py_DECREF(code);
  return code;
#else
  return frame->f_code;
#endif
}

// Each kind of event has a function of its own, so that one doesn't save and restore the registers that another needs. What is
// seldom done has one, too, which goes on from there.
[[gnu::noinline]] int on_other_call(ThreadCalls& calls, PyFrameObject* frame) {
  PyCodeObject* const code = code_of(frame);
  const bool can_be_suspended = (code->co_flags & kCanSuspend) != 0;
  const int instruction = can_be_suspended ? instruction_of(frame) : kAtBegin;
  const KnownCall* const name = can_be_suspended ? recent_name(code, instruction) : nullptr;
  return begin_known(calls, name, frame, PyThreadState_Get()) ? 0 : enter_slowly(calls, {code, instruction, frame, frame});
}

[[gnu::noinline, gnu::hot]] int on_call(ThreadCalls& calls, PyFrameObject* frame) {
  const PyCodeObject* const code = code_of(frame);
  const PyThreadState* const thread = PyThreadState_Get();
  if (begin_known(calls, recent_name(code), frame, thread)) return 0;
  return on_other_call(calls, frame);
}

[[gnu::noinline]] int on_other_c_call(ThreadCalls& calls, PyObject* argument) {
  return tracer->c_calls ? enter_c_slowly(calls, argument, CFunction::of(argument, nullptr)) : 0;
}

// CPython is asked for the thread by another function, which calls this one last: so this one saves and restores no registers.
[[gnu::noinline, gnu::hot]] int on_c_call_of(PyObject* argument, const PyThreadState* thread) {
  ThreadCalls& calls = *tls_calls;
  const bool is_usual = Py_TYPE(argument) == &PyCFunction_Type && tracer->c_calls;
  if (__builtin_expect(!is_usual, 0)) return on_other_c_call(calls, argument);
  const KnownCall* const known = recent_functions.find(CFunction::of_builtin(argument));
  return begin_leaf_in(calls, known, thread) ? 0 : on_other_c_call(calls, argument);
}

[[gnu::noinline, gnu::hot]] int on_c_call(PyObject* argument) { return on_c_call_of(argument, PyThreadState_Get()); }

[[gnu::noinline]] int on_other_return(ThreadCalls& calls, PyFrameObject* frame) {
  return leave_python_slowly(calls, frame), 0;
}

[[gnu::noinline, gnu::hot]] int on_return(ThreadCalls& calls, PyFrameObject* frame) {
  return end_known(calls, frame) ? 0 : on_other_return(calls, frame);
}

[[gnu::noinline]] int on_other_c_return(ThreadCalls& calls) { return leave_c_slowly(calls), 0; }

[[gnu::noinline, gnu::hot]] int on_c_return(ThreadCalls& calls) {
  return end_leaf(*calls.buffer) ? 0 : on_other_c_return(calls);
}

[[gnu::always_inline]] inline int on_event(ThreadCalls& calls, PyFrameObject* frame, int what, PyObject* argument) {
  static_assert(PyTrace_C_EXCEPTION == PyTrace_C_CALL + 1 && PyTrace_C_RETURN == PyTrace_C_CALL + 2);
  if (what == PyTrace_C_CALL) return on_c_call(argument);
  if (what > PyTrace_C_CALL) return what <= PyTrace_C_RETURN ? on_c_return(calls) : 0;
  if (what == PyTrace_CALL) return on_call(calls, frame);
  return what == PyTrace_RETURN ? on_return(calls, frame) : 0;
}

// At a thread's first event of a tracing, which may be the return of what was on its stack before, and in a child before its own
// hooks have run.
[[gnu::noinline]] int begin_first(PyFrameObject* frame, int what, PyObject* argument) {
  ThreadCalls* calls = thread_calls(tracer->tracing);
  if (calls == nullptr || calls->left_out) return 0;
  const OpenCall begun = what == PyTrace_CALL ? OpenCall{ThreadCalls::kHidden, frame} : OpenCall{ThreadCalls::kOfC, nullptr};
  const bool begins = what == PyTrace_CALL || what == PyTrace_C_CALL;
  if (tracer->forked) return begins ? enter_after_fork(*calls, begun) : void(), 0;
  const Made back(what == PyTrace_CALL ? reinterpret_cast<PyObject*>(PyFrame_GetBack(frame)) : nullptr);
  const int met = meet_thread(*calls, what == PyTrace_CALL ? reinterpret_cast<PyFrameObject*>(back.object) : frame);
  return met > 0 ? on_event(*calls, frame, what, argument) : met;
}

// Where calls can't be recorded now, or the thread hasn't been met.
[[gnu::noinline]] int on_event_elsewhere(PyFrameObject* frame, int what, PyObject* argument) {
  if (!tracer->is_on()) return unprofile_this_thread(), 0;
  const bool begins = what == PyTrace_CALL || what == PyTrace_C_CALL;
  ThreadCalls* const calls = tls_calls;
  const bool met = calls != nullptr && calls->met_in == tracer->tracing;
  return begins || !met ? begin_first(frame, what, argument) : on_event(*calls, frame, what, argument);
}

}  // namespace

[[gnu::hot]] int on_profile_event(PyObject*, PyFrameObject* frame, int what, PyObject* argument) {
  ThreadCalls* const calls = ready_calls();
  if (__builtin_expect(calls == nullptr, 0)) return on_event_elsewhere(frame, what, argument);
  return on_event(*calls, frame, what, argument);
}

}  // namespace recfn
