// Slow path of call begin and end, and the first sight of a thread with open calls.
//
// Each call of Python's that begins pushes an entry on the stack of its thread's calls, and its end
// pops it. The name of the call's code decides what the entry is (`CallName::hides`):
//
//   the call is                          entry      a range begins         calls in it
//   -----------------------------------  ---------  ---------------------  -----------------------
//   beyond max_depth, or in one that     0          no                     the same
//   hides its callees
//   of a code object that isn't shown,   kHidden    no                     Python's are traced,
//   or without a name                                                      C's are not
//   of one that hides its callees        kHidden    no                     are not traced
//   of one that is named by its frame    event id,  with the name that     are traced
//                                        or 0       Python gives, if any
//   of any other code object             event id   with its name, by the  are traced
//                                                   fast path next time
//
// Naming a call may run Python, in which another thread may stop tracing. So each way keeps the
// number of the tracing in which it began, and `push` ends at once what began in an earlier one.
//
// A thread that is seen for the first time may have calls open. These begin then, the outermost
// first (`meet_thread`), or, of a thread that waits and so tells of nothing, when a thread of ours
// looks (`record_blocked_threads`).
#include "calls/tracer.hpp"

#include <ctime>
#include <utility>

#include "core/registry.hpp"
#include "core/thread_buffer.hpp"

namespace recfn {
namespace {

constexpr uint64_t kCallRoom = 64;  // words: of a begin with its name, mostly
// A thread whose ring is full waits half a second at most, in these pauses.
constexpr long kPauseNs = 100'000;
constexpr int kMaxPauses = 5000;
// The most calls of a thread that are begun when it is seen first; those further out are left out.
constexpr int kMaxStartFrames = 128;

// Begins a call. `name`: its own copy, as what is done here may run Python, which may free names.
// `frame`: the call's own, or null, as `call_site` takes it. Returns the event id; 0: it isn't
// recorded.
uint64_t begin(ThreadCalls& calls, std::string name, PyFrameObject* frame, uint64_t began_at = 0) {
  if (!calls.were_open && !is_recording()) return 0;
  const std::string site = tracer->call_sites ? call_site(frame) : std::string();
  OptionalPrelude optional;
  optional.texts[kCallSite] = text_of(site);
  const Begin call = call_of(text_of(name), site.empty() ? nullptr : &optional);
  if (calls.were_open) return begin_open_call(*tracer->globals, *calls.buffer, call, began_at);
  return begin_call(*tracer->globals, *calls.buffer, call);
}

int enter_named_by_frame(ThreadCalls& calls, const CallBegin& call, PyObject* frame_namer,
                         uint64_t tracing) {
  PyObject* const frame = reinterpret_cast<PyObject*>(call.frame);
  const Reference owned(Py_NewRef(frame_namer));
  const Reference answer(call_without_dynamo(owned.get(), &frame, 1));
  if (!answer && without_name() < 0) return -1;
  const bool named = answer && PyUnicode_Check(answer.get());
  uint64_t event_id = 0;
  if (named && !is_deep_enough(calls)) {
    event_id = begin(calls, as_utf8(answer.get()), call.frame, call.began_at);
  }
  push(calls, {event_id, call.key}, tracing);
  return 0;
}

// Writes new references to the frames from this one outwards, whose own reference is the first of
// them. Returns their number.
int read_stack(PyFrameObject* innermost, PyFrameObject** frames) {
  int count = 0;
  for (PyFrameObject* frame = innermost; frame != nullptr && count < kMaxStartFrames;) {
    frames[count++] = frame;
    frame = PyFrame_GetBack(frame);
    if (count == kMaxStartFrames) Py_XDECREF(frame);
  }
  return count;
}

// Start time for calls already on the stack when a thread is first seen: the start of tracing, if
// the thread existed then and has recorded nothing yet, as records must stay in order; otherwise
// now.
uint64_t open_since(const ThreadBuffer& buffer, uint64_t thread) {
  const bool has_recorded =
      buffer.recording.disabled_by != 0 ||
      buffer.recording.epoch == tracer->globals->epoch.load(std::memory_order_relaxed);
  const bool existed = thread <= tracer->newest_thread && !had_other_profile_function(thread);
  return existed && !has_recorded ? tracer->began_at : 0;
}

// Begins these frames' calls, the outermost first, and releases the frames.
int enter_stack(ThreadCalls& calls, PyFrameObject** frames, int count, uint64_t began_at) {
  const uint64_t tracing = calls.met_in;
  int result = 0;
  calls.were_open = true;
  for (int i = count; i-- > 0;) {
    const Reference code(reinterpret_cast<PyObject*>(PyFrame_GetCode(frames[i])));
    const CallBegin call{reinterpret_cast<PyCodeObject*>(code.get()), instruction_of(frames[i]),
                         frames[i], frames[i], began_at};
    if (result == 0 && calls.met_in == tracing) result = enter_slowly(calls, call);
    calls.depth = 0;  // depth is counted from where tracing began
    Py_DECREF(frames[i]);
  }
  calls.were_open = false;
  return result;
}

// The innermost call in this frame that is open.
OpenCall* find_call(ThreadCalls& calls, const void* frame) {
  for (size_t i = calls.stack.size(); frame != nullptr && i-- > 0;) {
    if (calls.stack[i].frame == frame) return &calls.stack[i];
  }
  return nullptr;
}

// Ends the calls that are open in a thread, from any thread.
void end_and_forget(ThreadCalls& calls) {
  if (calls.met_in == kNotMet) return;
  ThreadBuffer* own = registry().current();
  if (calls.buffer != own) registry().end_calls(calls.buffer);
  for (; !calls.stack.empty(); calls.stack.pop()) {
    const uint64_t event_id = entry_event_id(calls.stack.back().entry);
    if (event_id != 0 && own != nullptr) {
      end_range(*tracer->globals, *own, event_id, 0, 0, kNothingMore);
    }
  }
  calls.forget();
}

// Where the thread's ring is full, others get the GIL until the drain has read some of it. Four
// threads that do nothing but call leave the drain the GIL every 20 ms, and it needs it some ten
// times a batch, while their rings are full in 100 ms: it would come too late, and calls be
// dropped. The thread waits once for each position that the drain has read up to. Where the drain
// doesn't come, as the calling thread is the one that drains, say, the thread continues, and what
// doesn't fit is dropped.
void yield_to_drain(ThreadCalls& calls) {
  if (calls.buffer == nullptr) return;
  ThreadBuffer& buffer = *calls.buffer;
  const uint64_t room = kCallRoom + uint64_t{kEndWords} * (buffer.open.recorded + 1);
  if (buffer.has_room(room)) return;
  const uint64_t read = buffer.reading.consumed.load(std::memory_order_acquire);
  if (calls.yielded_at == read) return;
  calls.yielded_at = read;
  Py_BEGIN_ALLOW_THREADS;
  const timespec pause{0, kPauseNs};
  for (int pauses = 0; pauses < kMaxPauses && !buffer.has_room(room); ++pauses) {
    nanosleep(&pause, nullptr);
  }
  Py_END_ALLOW_THREADS;
}

int enter(ThreadCalls& calls, CallBegin call) {
  const uint64_t tracing = calls.met_in;
  yield_to_drain(calls);
  if (!takes_fast_path(calls)) {
    push(calls, {0, call.key}, tracing);
    return 0;
  }
  PyObject* const code = reinterpret_cast<PyObject*>(call.code);
  if (call.frame == nullptr) call.frame = PyEval_GetFrame();
  const CallName* name = tracer->names.known(code, call.instruction);
  if (name == nullptr && call.frame != nullptr) {
    name = tracer->names.code_name(code, call.frame, call.instruction);
  }
  if (name == nullptr) {
    if (without_name() < 0) return -1;
    push(calls, {ThreadCalls::kHidden, call.key}, tracing);
    return 0;
  }
  if (name->hides == Hides::kNothing) {
    if (!tracer->call_sites) recent_names.cache(code, call.instruction, name->text);
    push(calls, {begin(calls, name->text, call.frame, call.began_at), call.key}, tracing);
    return 0;
  }
  if (name->hides == Hides::kAskFrame) {
    return enter_named_by_frame(calls, call, name->frame_namer.get(), tracing);
  }
  if (name->hides == Hides::kCallees && calls.met_in == tracing) calls.hide_callees();
  push(calls, {ThreadCalls::kHidden, call.key}, tracing);
  return 0;
}

void enter_c(ThreadCalls& calls, CFunction function) {
  const uint64_t tracing = calls.met_in;
  yield_to_drain(calls);
  if (!takes_fast_path(calls) || hides_next_c_call(calls)) {
    return push(calls, {ThreadCalls::kCFunction, nullptr}, tracing);
  }
  std::string name = CallTexts::function_name(function);
  if (!tracer->call_sites) recent_functions.cache(function, name);
  push(calls, {begin(calls, std::move(name), nullptr) | ThreadCalls::kCFunction, nullptr}, tracing);
}

// Begins a call. If there is no memory for that, it isn't recorded, and is counted as dropped.
template <typename Enter>
int or_dropped(ThreadCalls& calls, Enter enter) {
  int result = 0;
  if (!had_memory_for([&] { result = enter(); })) count_dropped(*calls.buffer);
  return result;
}

// The answer of is_own_thread() for the calling thread; null if it raises, with the error set or
// not.
Reference ask_for_own_thread() {
  const Reference asked(Py_NewRef(tracer->is_own_thread));
  Reference answer(call_without_dynamo(asked.get(), nullptr, 0));
  if (!answer) without_name();
  return answer;
}

// Begins the calls that are open in a thread when it is seen first. Returns whether it is traced
// from now on.
bool meet_thread(ThreadCalls& calls, PyFrameObject* innermost) {
  if (!is_recording()) return false;
  const uint64_t tracing = calls.tracing;
  calls.thread = PyThreadState_GetID(PyThreadState_Get());
  const Reference is_own = ask_for_own_thread();
  if (!is_own) return false;
  if (is_own.get() == Py_None || tracer->tracing != tracing) {
    // None: its name isn't known yet either.
    return false;
  }
  calls.left_out = is_own.get() == Py_True;
  ThreadBuffer* buffer = calls.left_out ? nullptr : registry().current();
  if (buffer == nullptr) return false;
  // Before the thread enters this recording.
  const uint64_t began_at = open_since(*buffer, calls.thread);
  find_open_call_context(*tracer->globals, *buffer);
  if (tracer->tracing != tracing) return false;
  calls.buffer = buffer;
  calls.met_in = tracing;
  PyFrameObject* frames[kMaxStartFrames];
  Py_XINCREF(innermost);
  const int count = read_stack(innermost, frames);
  return enter_stack(calls, frames, count, began_at) == 0 && calls.met_in == tracing;
}

bool is_known_thread(uint64_t thread) {
  const auto& all = thread_calls().all();
  return std::any_of(all.begin(), all.end(), [thread](const auto& calls) {
    return calls->thread == thread && calls->tracing == tracer->tracing &&
           (calls->left_out || calls->met_in == tracer->tracing);
  });
}

// Begins one thread's calls, as record_blocked_threads does. -1 with the error set.
int record_blocked_thread(PyThreadState* thread, uint64_t native_id) {
  const uint64_t id = PyThreadState_GetID(thread);
  if (id > tracer->newest_thread || is_known_thread(id) || had_other_profile_function(id)) return 0;
  ThreadBuffer* const buffer = registry().blocked_buffer(thread->thread_id, native_id);
  if (buffer == nullptr) return 0;
  ThreadCalls calls;
  calls.buffer = buffer;
  calls.tracing = tracer->tracing;
  calls.met_in = tracer->tracing;
  PyFrameObject* frames[kMaxStartFrames];
  const int result = enter_stack(calls, frames, read_stack(PyThreadState_GetFrame(thread), frames),
                                 tracer->began_at);
  buffer->reading.ended.store(true, std::memory_order_release);
  return result;
}

}  // namespace

std::string call_site(PyFrameObject* called) {
  PyFrameObject* frame = called != nullptr ? PyFrame_GetBack(called) : PyEval_GetFrame();
  if (called == nullptr) Py_XINCREF(frame);
  while (frame != nullptr) {
    const Reference owned(reinterpret_cast<PyObject*>(frame));
    const Reference code(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
    const CallName* line = tracer->names.call_site_name(code.get(), frame, instruction_of(frame));
    if (line == nullptr || !line->text.empty()) return line != nullptr ? line->text : std::string();
    frame = PyFrame_GetBack(frame);
  }
  return {};
}

int enter_slowly(ThreadCalls& calls, CallBegin call) {
  return or_dropped(calls, [&] { return enter(calls, call); });
}

int enter_c_slowly(ThreadCalls& calls, CFunction function) {
  return or_dropped(calls, [&] {
    enter_c(calls, function);
    return 0;
  });
}

// What began in a call that ends is over with it, but for what runs in other greenlets: these end
// calls in any order.
void leave_python_slowly(ThreadCalls& calls, const void* frame) {
  OpenCall* ended_call = find_call(calls, frame);
  // It was on the stack already when its thread was met.
  if (ended_call == nullptr) ended_call = find_call(calls, PyEval_GetFrame());
  if (ended_call == nullptr) return;
  const bool others_are_over = ended_call != &calls.stack.back() && !has_greenlets();
  while (others_are_over && ended_call != &calls.stack.back()) pop(calls);
  while ((calls.stack.back().entry & ThreadCalls::kCFunction) != 0) pop(calls);
  std::rotate(ended_call, ended_call + 1, &calls.stack.back() + 1);
  pop(calls);
}

void leave_c_slowly(ThreadCalls& calls) {
  size_t depth = calls.stack.size();
  while (depth > 0 && (calls.stack[depth - 1].entry & ThreadCalls::kCFunction) == 0) {
    depth = has_greenlets() ? depth - 1 : 0;
  }
  if (depth == 0) return;
  std::rotate(&calls.stack[depth - 1], &calls.stack[depth - 1] + 1, &calls.stack.back() + 1);
  pop(calls);
}

ThreadCalls* meet(PyFrameObject* frame, const void* key) {
  ThreadCalls* const calls = thread_calls().own(tracer->tracing);
  if (calls == nullptr || calls->left_out) return nullptr;
  if (tracer->forked) {
    // Where C code has forked, this may be the first use of ours in the child, which the asked
    // function notices. Where Python has, its own handler is still to come.
    if (!ask_for_own_thread() || tracer->forked) return nullptr;
    if (calls->met_in == tracer->tracing) return calls;  // the thread that forked
  }
  const bool has_begun = key != nullptr && frame != nullptr;
  const Reference back(has_begun ? reinterpret_cast<PyObject*>(PyFrame_GetBack(frame)) : nullptr);
  PyFrameObject* const innermost = has_begun ? reinterpret_cast<PyFrameObject*>(back.get()) : frame;
  return meet_thread(*calls, innermost) ? calls : nullptr;
}

int record_blocked_threads(PyObject* native_ids) {
  if (!tracer->is_on() || tracer->blocked_recorded_in == tracer->tracing) return 0;
  tracer->blocked_recorded_in = tracer->tracing;
  int result = 0;
  each_thread([&](PyThreadState* thread) {
    const Reference ident(PyLong_FromUnsignedLong(thread->thread_id));
    PyObject* const native_id = ident ? PyDict_GetItem(native_ids, ident.get()) : nullptr;
    if (native_id != nullptr) {
      result = record_blocked_thread(thread, PyLong_AsUnsignedLongLong(native_id));
    }
    return result == 0;
  });
  return result;
}

void end_all_calls() {
  for (const auto& calls : thread_calls().all()) end_and_forget(*calls);
}

bool end_thread_calls(uint64_t thread) {
  bool was_traced = false;
  for (const auto& calls : thread_calls().all()) {
    if (calls->met_in != tracer->tracing || calls->thread != thread) continue;
    end_and_forget(*calls);
    was_traced = true;
  }
  return was_traced;
}

}  // namespace recfn
