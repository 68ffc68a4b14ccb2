// What the profile function does, which CPython calls at each call and return, with the GIL.
//
//   call    name of the code object ─► begin_call ─► push the event id      at first sight the name is made
//   return                             end_range  ◄─ pop
//
// Where Python runs meanwhile (to name a module, to read the context), another thread may stop tracing: then what was begun is
// ended at once, and the object that CPython passed is held until we return.
#include "calls/call_tracer.hpp"

#include <frameobject.h>
#include <pthread.h>

#include <new>
#include <utility>

#include "calls/code_names.hpp"
#include "calls/first_sight.hpp"
#include "calls/profiled_threads.hpp"
#include "calls/thread_calls.hpp"
#include "core/registry.hpp"
#include "cpython/made.hpp"
#include "python/context_reader.hpp"
#include "python/text.hpp"

namespace recfn {
namespace {

constexpr int kMaxStartFrames = 128;  // as Python's `sources/calls/protocol.py` has it
constexpr int kAtBegin = -2;          // instead of an instruction: calls of what is no generator begin at their first one

struct Tracer {
  uint64_t tracing = 0;  // odd while it traces; another number each time
  bool forked = false;   // in a child, until locks that another thread of the parent held have been made anew
  bool c_calls = true;
  size_t max_depth = SIZE_MAX;
  Globals* globals = nullptr;
  PyObject* is_own_thread = nullptr;
  FirstSight names;

  bool is_on() const { return (tracing & 1) != 0; }
};

Tracer* tracer = nullptr;  // made with the module, and never destroyed

int instruction_of(PyFrameObject* frame) {
#if PY_VERSION_HEX >= 0x030B0000
  return PyFrame_GetLasti(frame);
#else
  return frame->f_lasti;
#endif
}

bool is_recording() { return (tracer->globals->recording.load(std::memory_order_acquire) & kRecordingBit) != 0; }

inline void end_call(ThreadCalls& calls, uint64_t entry) {
  const uint64_t event_id = entry & ~(ThreadCalls::kOfC | ThreadCalls::kHidden);
  if (event_id == 0) return;
  end_range(*tracer->globals, *calls.buffer, event_id, 0, 0, {});
  calls.shown -= calls.shown != 0;
}

inline uint64_t pop(ThreadCalls& calls) {
  const uint64_t entry = calls.stack.back();
  calls.stack.pop_back();
  end_call(calls, entry);
  if (__builtin_expect(calls.stack.size() <= calls.hidden_from, 0)) calls.hidden_from = kNothingHidden;
  return entry;
}

inline void push(ThreadCalls& calls, uint64_t entry, uint64_t tracing) try {
  calls.shown += (entry & ~(ThreadCalls::kOfC | ThreadCalls::kHidden)) != 0;
  if (tracer->tracing != tracing) return end_call(calls, entry);
  calls.stack.push_back(entry);
} catch (const std::bad_alloc&) {  // its exit would be taken for another's
  end_call(calls, entry);
  while (!calls.stack.empty()) pop(calls);
  calls.left_out = true;
}

inline uint64_t begin(ThreadCalls& calls, const CallName& name) {
  Globals& globals = *tracer->globals;
  if (!is_recording()) return 0;
  const bool reads_context = globals.context_version.load(std::memory_order_relaxed) != nullptr;
  const uint64_t version = reads_context ? context_version_of(globals, calls.state) : 0;
  return begin_call(globals, *calls.buffer, name.name(), name.hash, version);
}

bool is_deep_enough(const ThreadCalls& calls) { return calls.shown >= tracer->max_depth; }

int enter_named_by_frame(ThreadCalls& calls, PyFrameObject* frame, PyObject* of_frame, uint64_t tracing) {
  const Made held(Py_NewRef(of_frame));
  const Made answer(PyObject_CallFunctionObjArgs(held.object, reinterpret_cast<PyObject*>(frame), nullptr));
  if (answer.object == nullptr && without_name() < 0) return -1;
  const bool named = answer.object != nullptr && PyUnicode_Check(answer.object);
  const Utf8 name(named ? answer.object : nullptr, kMaxNameBytes);
  const bool shown = named && !is_deep_enough(calls) && is_recording();
  push(calls, shown ? begin_call(*tracer->globals, *calls.buffer, name.text()) : 0, tracing);
  return 0;
}

// Where the name isn't known yet, or says that it takes more than to begin a range.
[[gnu::noinline]] int enter_slowly(ThreadCalls& calls, PyFrameObject* frame, PyObject* code, int instruction) {
  const uint64_t tracing = tracer->tracing;
  if (calls.hidden_from != kNothingHidden || is_deep_enough(calls)) return push(calls, 0, tracing), 0;
  const CallName* name = CodeNames::find(code, instruction, tracer->names.version());
  if (name == nullptr) name = tracer->names.of_code(code, frame, instruction);
  if (name == nullptr) {
    if (without_name() < 0) return -1;
    return push(calls, ThreadCalls::kHidden, tracing), 0;
  }
  if (name->hides == Hides::kNothing) return push(calls, begin(calls, *name), tracing), 0;
  if (name->hides == Hides::kAskFrame) return enter_named_by_frame(calls, frame, name->of_frame, tracing);
  if (name->hides == Hides::kAllBelow) calls.hidden_from = calls.stack.size();
  push(calls, ThreadCalls::kHidden, tracing);
  return 0;
}

constexpr int kCanSuspend = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR;

inline int enter(ThreadCalls& calls, PyFrameObject* frame) {
  PyCodeObject* const code = PyFrame_GetCode(frame);
  const Made held(reinterpret_cast<PyObject*>(code));
  const int instruction = (code->co_flags & kCanSuspend) != 0 ? instruction_of(frame) : kAtBegin;
  const CallName* name = CodeNames::find(held.object, instruction, tracer->names.version());
  const bool known = name != nullptr && name->hides == Hides::kNothing;
  if (__builtin_expect(!known || calls.hidden_from != kNothingHidden || is_deep_enough(calls), 0)) {
    return enter_slowly(calls, frame, held.object, instruction);
  }
  const uint64_t tracing = tracer->tracing;
  push(calls, begin(calls, *name), tracing);
  return 0;
}

bool hides_its_c_calls(const ThreadCalls& calls) {
  return calls.hidden_from != kNothingHidden || is_deep_enough(calls) ||
         (!calls.stack.empty() && (calls.stack.back() & ThreadCalls::kHidden) != 0);
}

inline int enter_c(ThreadCalls& calls, PyObject* function) {
  const uint64_t tracing = tracer->tracing;
  if (hides_its_c_calls(calls)) return push(calls, ThreadCalls::kOfC, tracing), 0;
  const CallName* name = tracer->names.functions().find(function);
  if (__builtin_expect(name == nullptr, 0)) name = tracer->names.of_function(function);
  if (__builtin_expect(name == nullptr, 0) && without_name() < 0) return -1;
  const uint64_t event_id = name != nullptr ? begin(calls, *name) : 0;
  push(calls, event_id | ThreadCalls::kOfC, tracing);
  return 0;
}

// The innermost Python call is over, and with it what C functions it called of which no exit was told.
inline void leave_python(ThreadCalls& calls) {
  while (!calls.stack.empty() && (pop(calls) & ThreadCalls::kOfC) != 0) continue;
}

inline void leave_c(ThreadCalls& calls) {
  if (!calls.stack.empty() && (calls.stack.back() & ThreadCalls::kOfC) != 0) pop(calls);
}

// Begins what was on the thread's stack before it was traced, from the outermost on.
int enter_stack(ThreadCalls& calls, PyFrameObject* innermost) {
  PyFrameObject* frames[kMaxStartFrames];
  int count = 0;
  Py_XINCREF(innermost);
  for (PyFrameObject* frame = innermost; frame != nullptr && count < kMaxStartFrames;) {
    frames[count++] = frame;
    frame = PyFrame_GetBack(frame);
    if (count == kMaxStartFrames) Py_XDECREF(frame);
  }
  int result = 0;
  for (int at = count; at-- > 0;) {
    const Made code(reinterpret_cast<PyObject*>(PyFrame_GetCode(frames[at])));
    if (result == 0) result = enter_slowly(calls, frames[at], code.object, instruction_of(frames[at]));
    calls.shown = 0;  // depth is counted from where tracing began
    Py_DECREF(frames[at]);
  }
  return result;
}

// 1: it is traced from now on; 0: it isn't, or not yet; -1: with the error set.
int meet_thread(ThreadCalls& calls, PyFrameObject* frame, int what) {
  if (!is_recording()) return 0;
  const Made is_own(PyObject_CallNoArgs(tracer->is_own_thread));
  if (is_own.object == nullptr) return without_name();
  calls.left_out = is_own.object == Py_True;
  ThreadBuffer* buffer = calls.left_out ? nullptr : registry().current();
  if (buffer == nullptr) return 0;
  calls.buffer = buffer, calls.state = PyThreadState_Get();
  const Made back(what == PyTrace_CALL ? reinterpret_cast<PyObject*>(PyFrame_GetBack(frame)) : nullptr);
  PyFrameObject* const innermost = what == PyTrace_CALL ? reinterpret_cast<PyFrameObject*>(back.object) : frame;
  return enter_stack(calls, innermost) < 0 ? -1 : 1;
}

int meet_and_begin(PyObject* object, ThreadCalls& calls, PyFrameObject* frame, int what, PyObject* argument) {
  const Made held(Py_NewRef(object));
  const int met = meet_thread(calls, frame, what);
  if (met <= 0) return met;
  if (what == PyTrace_CALL) return enter(calls, frame);
  return tracer->c_calls ? enter_c(calls, argument) : 0;
}

// Only notes where calls begin that end later: nothing here asks Python or takes a lock.
int on_begin_after_fork(ThreadCalls& calls, int what) {
  if (calls.buffer != nullptr) push(calls, what == PyTrace_C_CALL ? ThreadCalls::kOfC : ThreadCalls::kHidden, tracer->tracing);
  return 0;
}

int on_begin(PyObject* object, ThreadCalls& calls, PyFrameObject* frame, int what, PyObject* argument) {
  if (__builtin_expect(tracer->forked, 0)) return on_begin_after_fork(calls, what);
  if (__builtin_expect(calls.buffer == nullptr, 0)) return meet_and_begin(object, calls, frame, what, argument);
  if (what == PyTrace_C_CALL && !tracer->c_calls) return 0;
  Py_INCREF(object);
  const int result = what == PyTrace_CALL ? enter(calls, frame) : enter_c(calls, argument);
  Py_DECREF(object);
  return result;
}

int on_event(PyObject* object, PyFrameObject* frame, int what, PyObject* argument) {
  ThreadCalls& calls = *reinterpret_cast<ThreadCallsObject*>(object)->calls;
  if (__builtin_expect(!tracer->is_on() || calls.left_out, 0)) return 0;
  if (what == PyTrace_CALL || what == PyTrace_C_CALL) return on_begin(object, calls, frame, what, argument);
  if (calls.buffer == nullptr) return 0;
  if (what == PyTrace_RETURN) {
    leave_python(calls);
  } else if (what == PyTrace_C_RETURN || what == PyTrace_C_EXCEPTION) {
    leave_c(calls);
  }
  return 0;
}

// What Python's CallTexts say of which calls are shown. False with the error set.
bool read_limits(PyObject* texts) {
  const Made c_calls(PyObject_GetAttrString(texts, "c_calls")), max_depth(PyObject_GetAttrString(texts, "max_depth"));
  if (c_calls.object == nullptr || max_depth.object == nullptr) return false;
  const size_t most = max_depth.object == Py_None ? SIZE_MAX : PyLong_AsSize_t(max_depth.object);
  if (PyErr_Occurred()) return false;
  tracer->c_calls = PyObject_IsTrue(c_calls.object) != 0, tracer->max_depth = most;
  return true;
}

PyObject* show_calls(PyObject*, PyObject* texts) {
  if (!tracer->names.read(texts) || !read_limits(texts)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* trace_calls(PyObject*, PyObject* args) try {
  PyObject *texts, *is_own_thread;
  if (!PyArg_ParseTuple(args, "OO:trace_calls", &texts, &is_own_thread)) return nullptr;
  if (!CodeNames::prepare()) return PyErr_Format(PyExc_RuntimeError, "CPython has no place for the names of code objects");
  if (!tracer->names.read(texts) || !read_limits(texts)) return nullptr;
  const Made earlier(std::exchange(tracer->is_own_thread, Py_NewRef(is_own_thread)));
  ++tracer->tracing;
  const Py_ssize_t others = profile_threads(on_event, new_thread_calls);
  return others >= 0 ? PyLong_FromSsize_t(others) : nullptr;
} catch (const std::bad_alloc&) {
  return PyErr_NoMemory();
}

PyObject* go_on_after_fork(PyObject*, PyObject*) {
  tracer->forked = false;
  Py_RETURN_NONE;
}

PyObject* trace_this_thread(PyObject*, PyObject*) {
  if (!tracer->is_on()) {
    PyEval_SetProfile(nullptr, nullptr);
    Py_RETURN_NONE;
  }
  const Made calls(new_thread_calls());
  if (calls.object == nullptr) return nullptr;
  PyEval_SetProfile(on_event, calls.object);
  Py_RETURN_NONE;
}

// Ends what is open: in other threads as `end` does that is called in another thread than `begin`.
void end_all() {
  ThreadBuffer* own = registry().current();
  for (ThreadCalls* calls : all_thread_calls()) {
    for (; !calls->stack.empty(); calls->stack.pop_back()) {
      const uint64_t event_id = calls->stack.back() & ~(ThreadCalls::kOfC | ThreadCalls::kHidden);
      if (event_id != 0 && own != nullptr) end_range(*tracer->globals, *own, event_id, 0, 0, {});
    }
    calls->hidden_from = kNothingHidden, calls->shown = 0;
  }
}

PyObject* untrace_calls(PyObject*, PyObject*) {
  if (!tracer->is_on()) Py_RETURN_NONE;
  ++tracer->tracing;
  end_all();
  try {
    unprofile_threads(on_event);
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"trace_calls", trace_calls, METH_VARARGS,
     "trace_calls(texts, is_own_thread) -> how many threads have another profile function, and keep it."},
    {"show_calls", show_calls, METH_O, "show_calls(texts): other names and limits from now on, in the middle of tracing."},
    {"trace_this_thread", trace_this_thread, METH_VARARGS, "A profile function that puts the tracer in its own place."},
    {"untrace_calls", untrace_calls, METH_NOARGS, "untrace_calls(): ends the calls that are open, and traces no thread any more."},
    {"go_on_after_fork", go_on_after_fork, METH_NOARGS, "go_on_after_fork(): in a child, where calls can be recorded again."},
    {nullptr, nullptr, 0, nullptr}};

void after_fork_in_child() {
  if (tracer != nullptr) tracer->forked = true;
}

}  // namespace

int add_call_tracer(PyObject* module) {
  static const int at_fork = pthread_atfork(nullptr, nullptr, after_fork_in_child);
  if (at_fork != 0) return PyErr_NoMemory(), -1;
  if (tracer == nullptr) tracer = new (std::nothrow) Tracer;
  if (tracer == nullptr) return PyErr_NoMemory(), -1;
  tracer->globals = &globals();
  return add_thread_calls(module) < 0 ? -1 : PyModule_AddFunctions(module, functions);
}

}  // namespace recfn
