// The tracer of calls, and what is done where a call begins and where it ends, with the GIL.
//
//   begin   name of the code object ─► begin_call ─► push the event id   (at first sight, the name
//   end                                 end_range ◄─ pop                  is made)
//
// Where Python runs meanwhile (to name a module, to read the context), another thread may stop
// tracing. It ends what is on this thread's stack of calls and empties that, and takes nothing else
// away: what this thread has begun since goes to its own buffer, and is ended at once by `push`,
// the one place that puts it on the stack, because the thread is no longer in the tracing in which
// it began that.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "calls/call_names.hpp"
#include "calls/thread_calls.hpp"
#include "calls/known_calls.hpp"
#include "cpython/python.hpp"
#include "parents/tasks/task_contexts.hpp"

namespace recfn {

// Instead of an instruction: calls of what can't be suspended begin at their first one.
constexpr int kAtBegin = -2;
constexpr int kCanSuspend = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR;

struct Tracer {
  uint64_t tracing = 0;  // odd while it traces; another number each time
  // In a child, until locks that another thread of the parent held have been made anew.
  bool forked = false;
  uint64_t ready = 0;          // `tracing`, while calls can be recorded; else 0
  uint64_t began_at = 0;       // in ticks
  uint64_t newest_thread = 0;  // the id of the PyThreadState that was made last before that
  // `tracing`, once the calls of threads that haven't been met were begun for them.
  uint64_t blocked_recorded_in = 0;
  bool c_calls = true;
  // Each call says which line called it: then none begins the short way, and no name is kept for
  // that.
  bool call_sites = false;
  size_t max_depth = SIZE_MAX;
  Globals* globals = nullptr;
  PyObject* is_own_thread = nullptr;
  // The ids of the PyThreadStates that were seen to have one.
  std::vector<uint64_t> with_other_profile_functions;
  CallNames names;

  bool is_on() const { return (tracing & 1) != 0; }

  void turn(uint64_t now_tracing, bool now_forked) {
    tracing = now_tracing;
    forked = now_forked;
    ready = is_on() && !forked ? tracing : 0;
  }
};

// At a fixed address: a pointer to it would be read at each event. Made with the module, and never
// destroyed.
alignas(Tracer) inline unsigned char tracer_memory[sizeof(Tracer)];
Tracer* const tracer = reinterpret_cast<Tracer*>(tracer_memory);

// A Python call that begins. `frame`: null for the one that runs now, which is asked for only where
// it is needed.
struct CallBegin {
  PyCodeObject* code;
  int instruction;
  PyFrameObject* frame;
  const void* key;        // OpenCall::frame
  uint64_t began_at = 0;  // in ticks; 0: now
};

inline int instruction_of(PyFrameObject* frame) {
#if PY_VERSION_HEX >= 0x030B0000
  return PyFrame_GetLasti(frame);
#else
  return frame->f_lasti;
#endif
}

// Where the name isn't known yet, or says that it takes more than to begin a range. -1 with the
// error set.
[[gnu::noinline]] int enter_slowly(ThreadCalls& calls, CallBegin call);

[[gnu::noinline]] int enter_c_slowly(ThreadCalls& calls, CFunction function);

// The innermost Python call is over, and with it what C functions it called of which no exit was
// told. Nothing is where the frame's call isn't open: CPython tells of the end of one whose begin
// or end another tool's callback refused, too.
[[gnu::noinline]] void leave_python_slowly(ThreadCalls& calls, const void* frame);
[[gnu::noinline]] void leave_c_slowly(ThreadCalls& calls);

// The line that called, of the innermost frame that isn't ours. `called`: the Python call's frame;
// null: what is called has none.
std::string call_site(PyFrameObject* called);

// The calling thread's calls at its first event of a tracing, which begins what is on its stack
// already; null where it isn't traced, or not yet, or tracing was stopped meanwhile, with the error
// set or not. A Python call that begins has a `key`, as OpenCall::frame, and its own `frame`; else
// that is the frame around.
ThreadCalls* meet(PyFrameObject* frame, const void* key);

// Begins, in buffers that stand for them, what was on the stacks of threads when tracing began of
// which nothing was told since: they have been blocked. `native_ids`: of the threads that this is
// for, by `pthread_self`. Once a tracing. -1 with the error set.
int record_blocked_threads(PyObject* native_ids);

// Ends what is open in every thread: in others as `end` does that is called in another thread than
// `begin`.
void end_all_calls();

// The same of the thread with this PyThreadState's id, which is met anew when it is told of again.
// Whether it was traced.
bool end_thread_calls(uint64_t thread);

constexpr uint64_t entry_event_id(uint64_t entry) {
  return entry & ~(ThreadCalls::kCFunction | ThreadCalls::kHidden);
}

inline bool is_recording() {
  return (tracer->globals->recording.load(std::memory_order_acquire) & kRecordingBit) != 0;
}

inline bool had_other_profile_function(uint64_t thread) {
  const auto& threads = tracer->with_other_profile_functions;
  return std::find(threads.begin(), threads.end(), thread) != threads.end();
}

inline bool is_deep_enough(const ThreadCalls& calls) { return calls.depth >= tracer->max_depth; }

inline void end_call(ThreadCalls& calls, uint64_t entry) {
  const uint64_t event_id = entry_event_id(entry);
  if (event_id == 0) return;
  end_range(*tracer->globals, *calls.buffer, event_id, 0, 0, kNothingMore);
  calls.depth -= calls.depth != 0;
}

inline void pop(ThreadCalls& calls) {
  const uint64_t entry = calls.stack.back().entry;
  calls.stack.pop();
  end_call(calls, entry);
  if (calls.stack.size() <= calls.hidden_from) calls.unhide_callees();
}

// `tracing`: the one in which the call began. What can't be pushed is ended: because that was
// stopped, or the stack is full.
inline void push(ThreadCalls& calls, OpenCall call, uint64_t tracing) {
  calls.depth += entry_event_id(call.entry) != 0;
  if (calls.stack.is_full() && calls.hidden_from == kNothingHidden && !is_deep_enough(calls)) {
    count_dropped_begin(*calls.buffer);
  }
  if (calls.stack.is_full() || calls.met_in != tracing) return end_call(calls, call.entry);
  calls.stack.push(call);
}

// The calling thread's calls, where it has been met and calls can be recorded; else null.
[[gnu::always_inline]] inline ThreadCalls* ready_calls() {
  ThreadCalls* const calls = tls_calls;
  return __builtin_expect(calls != nullptr && calls->met_in == tracer->ready, 1) ? calls : nullptr;
}

[[gnu::always_inline]] inline bool takes_fast_path(const ThreadCalls& calls) {
  return calls.stack.takes_fast_path() && !is_deep_enough(calls);
}

[[gnu::always_inline]] inline bool hides_next_c_call(const ThreadCalls& calls) {
  return (calls.stack.back().entry & ThreadCalls::kHidden) != 0;
}

// Begins a call the short way (begin_known_call). Whether it did. `bits`: of ThreadCalls' entries.
// `frame`: as OpenCall::frame.
[[gnu::always_inline]] inline bool begin_known(ThreadCalls& calls, const KnownCall* call,
                                               uint64_t bits, const void* frame,
                                               const PyThreadState* thread) {
  const Globals& globals = *tracer->globals;
  uint64_t event_id;
  const uint64_t version = context_version_of(globals, thread);
  if (!begin_known_call(globals, *calls.buffer, *call, version, event_id)) return false;
  calls.stack.push({event_id | bits, frame});
  ++calls.depth;
  return true;
}

[[gnu::always_inline]] inline bool begin_known_python(ThreadCalls& calls, const KnownCall* call,
                                                      const void* frame,
                                                      const PyThreadState* thread) {
  if (__builtin_expect(call == nullptr || !takes_fast_path(calls), 0)) return false;
  return begin_known(calls, call, 0, frame, thread);
}

[[gnu::always_inline]] inline bool begin_known_c(ThreadCalls& calls, const KnownCall* call,
                                                 const PyThreadState* thread) {
  if (__builtin_expect(call == nullptr || !takes_fast_path(calls) || hides_next_c_call(calls), 0)) {
    return false;
  }
  return begin_known(calls, call, ThreadCalls::kCFunction, nullptr, thread);
}

// Ends the innermost call the short way, where that is this event. Whether it did.
[[gnu::always_inline]] inline bool end_known(ThreadCalls& calls, uint64_t event_id) {
  if (!end_known_call(*tracer->globals, *calls.buffer, event_id)) return false;
  calls.stack.pop();
  calls.depth -= calls.depth != 0;
  return true;
}

// The innermost call where it is that frame's. What is hidden has no event id.
[[gnu::always_inline]] inline bool end_known_python(ThreadCalls& calls, const void* frame) {
  const OpenCall& innermost = calls.stack.back();
  if (__builtin_expect(innermost.frame != frame || innermost.entry == 0, 0)) return false;
  return end_known(calls, innermost.entry);
}

// The innermost call where it is a C function's that is recorded.
[[gnu::always_inline]] inline bool end_known_c(ThreadCalls& calls) {
  const uint64_t entry = calls.stack.back().entry;
  if (__builtin_expect(entry <= ThreadCalls::kCFunction, 0)) return false;
  return end_known(calls, entry & ~ThreadCalls::kCFunction);
}

// The name of what begins there, where it was found lately. What can be suspended has none at its
// begin.
[[gnu::always_inline]] inline const KnownCall* recent_name(const PyCodeObject* code,
                                                           int instruction = kAtBegin) {
  return recent_names.find(reinterpret_cast<const PyObject*>(code), instruction);
}

// Each thread once, until `work` says false: false then. Work may let other threads run, which may
// start and end: so the list is read anew after each.
template <typename Work>
bool each_thread(Work work) {
  std::vector<uint64_t> done;
  PyInterpreterState* const interpreter = PyInterpreterState_Get();
  for (PyThreadState* at = PyInterpreterState_ThreadHead(interpreter); at != nullptr;) {
    const uint64_t id = PyThreadState_GetID(at);
    if (std::find(done.begin(), done.end(), id) != done.end()) {
      at = PyThreadState_Next(at);
      continue;
    }
    done.push_back(id);
    if (!work(at)) return false;
    at = PyInterpreterState_ThreadHead(interpreter);
  }
  return true;
}

}  // namespace recfn
