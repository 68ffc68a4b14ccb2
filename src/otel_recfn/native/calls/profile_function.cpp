#include "calls/profile_function.hpp"

#include <frameobject.h>

#include "calls/enter_leave.hpp"
#include "calls/profiled_threads.hpp"
#include "cpython/made.hpp"

namespace recfn {
namespace {

[[gnu::always_inline]] inline int enter_frame(ThreadCalls& calls, PyFrameObject* frame) {
  PyCodeObject* const code = PyFrame_GetCode(frame);
  const Made held(reinterpret_cast<PyObject*>(code));
  if (__builtin_expect((code->co_flags & kCanSuspend) == 0, 1)) return enter(calls, {code, kAtBegin, frame});
#if PY_VERSION_HEX >= 0x030B0000
  return enter(calls, {code, PyFrame_GetLasti(frame), frame});
#else
  return enter(calls, {code, frame->f_lasti, frame});
#endif
}

[[gnu::always_inline]] inline int begin_event(ThreadCalls& calls, PyFrameObject* frame, int what, PyObject* argument) {
  if (what == PyTrace_CALL) return enter_frame(calls, frame);
  if (!tracer->c_calls) return 0;
  const CFunction function = CFunction::of(argument, nullptr);
  return enter_c(calls, argument, function);
}

// At a thread's first event of a tracing, and in a child before its own hooks have run.
[[gnu::noinline]] int begin_first(PyFrameObject* frame, int what, PyObject* argument) {
  ThreadCalls* calls = thread_calls(tracer->tracing);
  if (calls == nullptr || calls->left_out) return 0;
  if (tracer->forked) return enter_after_fork(*calls, what == PyTrace_C_CALL ? ThreadCalls::kOfC : ThreadCalls::kHidden), 0;
  const Made back(what == PyTrace_CALL ? reinterpret_cast<PyObject*>(PyFrame_GetBack(frame)) : nullptr);
  const int met = meet_thread(*calls, what == PyTrace_CALL ? reinterpret_cast<PyFrameObject*>(back.object) : frame);
  return met > 0 ? begin_event(*calls, frame, what, argument) : met;
}

}  // namespace

int on_profile_event(PyObject*, PyFrameObject* frame, int what, PyObject* argument) {
  if (__builtin_expect(!tracer->is_on(), 0)) return unprofile_this_thread(), 0;
  ThreadCalls* const calls = tls_calls;
  const bool met = calls != nullptr && calls->tracing == tracer->tracing && calls->buffer != nullptr && !tracer->forked;
  if (what == PyTrace_CALL || what == PyTrace_C_CALL) {
    return __builtin_expect(met, 1) ? begin_event(*calls, frame, what, argument) : begin_first(frame, what, argument);
  }
  if (calls == nullptr || calls->tracing != tracer->tracing || calls->buffer == nullptr) return 0;
  if (what == PyTrace_RETURN) {
    leave_python(*calls);
  } else if (what == PyTrace_C_RETURN || what == PyTrace_C_EXCEPTION) {
    leave_c(*calls);
  }
  return 0;
}

}  // namespace recfn
