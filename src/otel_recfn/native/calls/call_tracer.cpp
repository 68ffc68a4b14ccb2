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

#include "calls/call_texts.hpp"
#include "calls/code_names.hpp"
#include "calls/function_names.hpp"
#include "calls/profiled_threads.hpp"
#include "calls/thread_calls.hpp"
#include "core/registry.hpp"
#include "cpython/made.hpp"
#include "python/text.hpp"

namespace recfn {
namespace {

constexpr int kMaxStartFrames = 128;  // as Python's `sources/calls/protocol.py` has it

struct Tracer {
  uint64_t tracing = 0;  // odd while it traces; another number each time
  bool forked = false;   // in a child, until locks that another thread of the parent held have been made anew
  PyObject *of_code = nullptr, *is_own_thread = nullptr;
  CallTexts texts;
  FunctionNames functions;

  bool is_on() const { return (tracing & 1) != 0; }
};

Tracer& tracer() {
  static auto* instance = new Tracer;
  return *instance;
}

int instruction_of(PyFrameObject* frame) {
#if PY_VERSION_HEX >= 0x030B0000
  return PyFrame_GetLasti(frame);
#else
  return frame->f_lasti;
#endif
}

// A name could not be had. Returns -1 where that was a signal handler's doing, whose exception is the program's.
int without_name() {
  if (!PyErr_Occurred()) return 0;
  const bool ours = PyErr_ExceptionMatches(PyExc_MemoryError) || PyErr_ExceptionMatches(PyExc_RecursionError);
  if (ours) PyErr_Clear();
  return ours ? 0 : -1;
}

bool is_recording() { return (globals().recording.load(std::memory_order_acquire) & kRecordingBit) != 0; }

void end_call(ThreadCalls& calls, uint64_t entry) {
  const uint64_t event_id = entry & ~(ThreadCalls::kOfC | ThreadCalls::kHidden);
  if (event_id != 0) end_range(globals(), *calls.buffer, event_id, 0, 0, {});
}

uint64_t pop(ThreadCalls& calls) {
  const uint64_t entry = calls.stack.back();
  calls.stack.pop_back();
  end_call(calls, entry);
  if (calls.stack.size() <= calls.hidden_from) calls.hidden_from = kNothingHidden;
  return entry;
}

void push(ThreadCalls& calls, uint64_t entry, uint64_t tracing) try {
  if (tracer().tracing != tracing) return end_call(calls, entry);
  calls.stack.push_back(entry);
} catch (const std::bad_alloc&) {  // its exit would be taken for another's
  end_call(calls, entry);
  while (!calls.stack.empty()) pop(calls);
  calls.left_out = true;
}

uint64_t begin(ThreadCalls& calls, Text name) { return is_recording() ? begin_call(globals(), *calls.buffer, name) : 0; }

// What Python answers where only it knows.
bool ask_python(PyObject* code, int line, CallName& name) {
  const Made answer(PyObject_CallFunction(tracer().of_code, "Oi", code, line));
  if (answer.object == nullptr) return false;
  name.hides = Hides::kNothing;
  if (PyUnicode_Check(answer.object)) {
    const Utf8 utf8(answer.object, kMaxNameBytes);
    name.text.assign(utf8.text().data != nullptr ? utf8.text().data : "", utf8.text().size);
  } else if (PyLong_Check(answer.object)) {
    name.hides = static_cast<Hides>(PyLong_AsLong(answer.object));
  } else {
    Py_INCREF(answer.object);
    name.of_frame = answer.object;
    name.hides = Hides::kAskFrame;
  }
  return true;
}

// At first sight. Null without memory, or with the error set.
const CallName* learn(PyObject* code, PyFrameObject* frame, int instruction, uint64_t tracing) try {
  const int line = PyFrame_GetLineNumber(frame);
  CallName name = tracer().texts.of_code(reinterpret_cast<PyCodeObject*>(code), line);
  if (name.hides == Hides::kAskFrame && !ask_python(code, line, name)) return nullptr;
  PyObject* const of_frame = name.of_frame;
  const CallName* kept = CodeNames::keep(code, instruction, tracing, std::move(name));
  if (kept == nullptr) Py_XDECREF(of_frame);
  return kept;
} catch (const std::bad_alloc&) {
  return nullptr;
}

int enter_named_by_frame(ThreadCalls& calls, PyFrameObject* frame, PyObject* of_frame, uint64_t tracing) {
  const Made answer(PyObject_CallFunctionObjArgs(of_frame, reinterpret_cast<PyObject*>(frame), nullptr));
  if (answer.object == nullptr && without_name() < 0) return -1;
  const bool named = answer.object != nullptr && PyUnicode_Check(answer.object);
  const Utf8 name(named ? answer.object : nullptr, kMaxNameBytes);
  push(calls, named ? begin(calls, name.text()) : 0, tracing);
  return 0;
}

int enter(ThreadCalls& calls, PyFrameObject* frame) {
  const uint64_t tracing = tracer().tracing;
  if (calls.hidden_from != kNothingHidden) return push(calls, 0, tracing), 0;
  const Made code(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
  const int instruction = instruction_of(frame);
  const CallName* name = CodeNames::find(code.object, instruction, tracing);
  if (__builtin_expect(name == nullptr, 0)) name = learn(code.object, frame, instruction, tracing);
  if (__builtin_expect(name == nullptr, 0)) {
    if (without_name() < 0) return -1;
    return push(calls, ThreadCalls::kHidden, tracing), 0;
  }
  if (__builtin_expect(name->hides == Hides::kNothing, 1)) {
    push(calls, begin(calls, {name->text.data(), static_cast<uint32_t>(name->text.size())}), tracing);
    return 0;
  }
  if (name->hides == Hides::kAskFrame) return enter_named_by_frame(calls, frame, name->of_frame, tracing);
  if (name->hides == Hides::kAllBelow) calls.hidden_from = calls.stack.size();
  push(calls, ThreadCalls::kHidden, tracing);
  return 0;
}

bool hides_its_c_calls(const ThreadCalls& calls) {
  return calls.hidden_from != kNothingHidden || (!calls.stack.empty() && (calls.stack.back() & ThreadCalls::kHidden) != 0);
}

const CallName* learn_function(PyObject* function) try {
  return tracer().functions.keep(function, CallTexts::of_function(function));
} catch (const std::bad_alloc&) {
  return nullptr;
}

int enter_c(ThreadCalls& calls, PyObject* function) {
  const uint64_t tracing = tracer().tracing;
  if (hides_its_c_calls(calls)) return push(calls, ThreadCalls::kOfC, tracing), 0;
  const CallName* name = tracer().functions.find(function);
  if (__builtin_expect(name == nullptr, 0)) name = learn_function(function);
  if (name == nullptr && without_name() < 0) return -1;
  const uint64_t event_id =
      name != nullptr ? begin(calls, {name->text.data(), static_cast<uint32_t>(name->text.size())}) : 0;
  push(calls, event_id | ThreadCalls::kOfC, tracing);
  return 0;
}

// The innermost Python call is over, and with it what C functions it called of which no exit was told.
void leave_python(ThreadCalls& calls) {
  while (!calls.stack.empty() && (pop(calls) & ThreadCalls::kOfC) != 0) continue;
}

void leave_c(ThreadCalls& calls) {
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
    if (result == 0) result = enter(calls, frames[at]);
    Py_DECREF(frames[at]);
  }
  return result;
}

// 1: it is traced from now on; 0: it isn't, or not yet; -1: with the error set.
int meet_thread(ThreadCalls& calls, PyFrameObject* frame, int what) {
  if (!is_recording()) return 0;
  const Made is_own(PyObject_CallNoArgs(tracer().is_own_thread));
  if (is_own.object == nullptr) return without_name();
  calls.left_out = is_own.object == Py_True;
  ThreadBuffer* buffer = calls.left_out ? nullptr : registry().current();
  if (buffer == nullptr) return 0;
  calls.buffer = buffer;
  const Made back(what == PyTrace_CALL ? reinterpret_cast<PyObject*>(PyFrame_GetBack(frame)) : nullptr);
  PyFrameObject* const innermost = what == PyTrace_CALL ? reinterpret_cast<PyFrameObject*>(back.object) : frame;
  return enter_stack(calls, innermost) < 0 ? -1 : 1;
}

int on_begin(PyObject* object, ThreadCalls& calls, PyFrameObject* frame, int what, PyObject* argument) {
  Py_INCREF(object);
  int met = calls.buffer != nullptr ? 1 : meet_thread(calls, frame, what);
  if (met > 0) met = what == PyTrace_CALL ? enter(calls, frame) : what == PyTrace_C_CALL ? enter_c(calls, argument) : 0;
  Py_DECREF(object);
  return met < 0 ? -1 : 0;
}

// Only notes where calls begin that end later: nothing here asks Python or takes a lock.
int on_begin_after_fork(ThreadCalls& calls, int what) {
  if (calls.buffer != nullptr) push(calls, what == PyTrace_C_CALL ? ThreadCalls::kOfC : ThreadCalls::kHidden, tracer().tracing);
  return 0;
}

int on_event(PyObject* object, PyFrameObject* frame, int what, PyObject* argument) {
  ThreadCalls& calls = *reinterpret_cast<ThreadCallsObject*>(object)->calls;
  if (!tracer().is_on() || calls.left_out) return 0;
  if (what == PyTrace_CALL || what == PyTrace_C_CALL) {
    return tracer().forked ? on_begin_after_fork(calls, what) : on_begin(object, calls, frame, what, argument);
  }
  if (calls.buffer == nullptr) return 0;
  if (what == PyTrace_RETURN) {
    leave_python(calls);
  } else if (what == PyTrace_C_RETURN || what == PyTrace_C_EXCEPTION) {
    leave_c(calls);
  }
  return 0;
}

void set_asked(PyObject* of_code, PyObject* is_own_thread) {
  Py_INCREF(of_code), Py_INCREF(is_own_thread);
  Py_XDECREF(tracer().of_code), Py_XDECREF(tracer().is_own_thread);
  tracer().of_code = of_code, tracer().is_own_thread = is_own_thread;
}

PyObject* trace_calls(PyObject*, PyObject* args) try {
  PyObject *texts, *is_own_thread;
  if (!PyArg_ParseTuple(args, "OO:trace_calls", &texts, &is_own_thread)) return nullptr;
  if (!CodeNames::prepare()) return PyErr_Format(PyExc_RuntimeError, "CPython has no place for the names of code objects");
  const Made of_code(PyObject_GetAttrString(texts, "of_code"));
  if (of_code.object == nullptr || !tracer().texts.read(texts)) return nullptr;
  set_asked(of_code.object, is_own_thread);
  tracer().functions.clear();
  ++tracer().tracing;
  const Py_ssize_t others = profile_threads(on_event, new_thread_calls);
  return others >= 0 ? PyLong_FromSsize_t(others) : nullptr;
} catch (const std::bad_alloc&) {
  return PyErr_NoMemory();
}

PyObject* go_on_after_fork(PyObject*, PyObject*) {
  tracer().forked = false;
  Py_RETURN_NONE;
}

PyObject* trace_this_thread(PyObject*, PyObject*) {
  if (!tracer().is_on()) {
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
      if (event_id != 0 && own != nullptr) end_range(globals(), *own, event_id, 0, 0, {});
    }
    calls->hidden_from = kNothingHidden;
  }
}

PyObject* untrace_calls(PyObject*, PyObject*) {
  if (!tracer().is_on()) Py_RETURN_NONE;
  ++tracer().tracing;
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
    {"trace_this_thread", trace_this_thread, METH_VARARGS, "A profile function that puts the tracer in its own place."},
    {"untrace_calls", untrace_calls, METH_NOARGS, "untrace_calls(): ends the calls that are open, and traces no thread any more."},
    {"go_on_after_fork", go_on_after_fork, METH_NOARGS, "go_on_after_fork(): in a child, where calls can be recorded again."},
    {nullptr, nullptr, 0, nullptr}};

void after_fork_in_child() { tracer().forked = true; }

}  // namespace

int add_call_tracer(PyObject* module) {
  static const int at_fork = pthread_atfork(nullptr, nullptr, after_fork_in_child);
  if (at_fork != 0) return PyErr_NoMemory(), -1;
  return add_thread_calls(module) < 0 ? -1 : PyModule_AddFunctions(module, functions);
}

}  // namespace recfn
