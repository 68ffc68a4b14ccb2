// What is done where a call begins and where it ends, with the GIL.
//
//   begin    name of the code object ─► begin_call ─► push the event id      at first sight the name is made
//   end                                 end_range  ◄─ pop
//
// Where Python runs meanwhile (to name a module, to read the context), another thread may stop tracing: then what was begun is
// ended at once.
#pragma once
#include "cpython/python.hpp"

#include <new>

#include "calls/c_function.hpp"
#include "calls/code_names.hpp"
#include "calls/first_sight.hpp"
#include "calls/thread_calls.hpp"
#include "core/begin_end.hpp"
#include "python/context_reader.hpp"

namespace recfn {

constexpr int kAtBegin = -2;  // instead of an instruction: calls of what can't be suspended begin at their first one
constexpr int kCanSuspend = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR;

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

extern Tracer* tracer;  // made with the module, and never destroyed

// A Python call that begins. `frame`: null for the one that runs now, which is asked for only where it is needed.
struct Begun {
  PyCodeObject* code;
  int instruction;
  PyFrameObject* frame;
};

// Where the name isn't known yet, or says that it takes more than to begin a range. -1 with the error set.
int enter_slowly(ThreadCalls& calls, const Begun& begun);

// Begins what is on the thread's stack already. 1: it is traced from now on; 0: it isn't, or not yet; -1: with the error set.
int meet_thread(ThreadCalls& calls, PyFrameObject* innermost);

// Only notes where calls begin that end later: nothing here asks Python or takes a lock.
void enter_after_fork(ThreadCalls& calls, uint64_t entry);

// Ends what is open in every thread: in others as `end` does that is called in another thread than `begin`.
void end_all_calls();

constexpr uint64_t event_id_of(uint64_t entry) { return entry & ~(ThreadCalls::kOfC | ThreadCalls::kHidden); }

inline bool is_recording() { return (tracer->globals->recording.load(std::memory_order_acquire) & kRecordingBit) != 0; }

inline bool is_deep_enough(const ThreadCalls& calls) { return calls.shown >= tracer->max_depth; }

[[gnu::always_inline]] inline void end_call(ThreadCalls& calls, uint64_t entry) {
  const uint64_t event_id = event_id_of(entry);
  if (event_id == 0) return;
  end_range(*tracer->globals, *calls.buffer, event_id, 0, 0, {});
  calls.shown -= calls.shown != 0;
}

[[gnu::always_inline]] inline uint64_t pop(ThreadCalls& calls) {
  const uint64_t entry = calls.stack.back();
  calls.stack.pop_back();
  end_call(calls, entry);
  if (__builtin_expect(calls.stack.size() <= calls.hidden_from, 0)) calls.hidden_from = kNothingHidden;
  return entry;
}

// What can't be pushed is ended: because tracing was stopped meanwhile, or for want of memory.
void push_slowly(ThreadCalls& calls, uint64_t entry, uint64_t tracing);

[[gnu::always_inline]] inline void push(ThreadCalls& calls, uint64_t entry, uint64_t tracing) {
  calls.shown += event_id_of(entry) != 0;
  const bool fits = calls.stack.size() < calls.stack.capacity() && tracer->tracing == tracing;
  if (__builtin_expect(!fits, 0)) return push_slowly(calls, entry, tracing);
  calls.stack.push_back(entry);
}

[[gnu::always_inline]] inline uint64_t begin(ThreadCalls& calls, const CallName& name) {
  Globals& globals = *tracer->globals;
  if (!is_recording()) return 0;
  const bool reads_context = globals.context_version.load(std::memory_order_relaxed) != nullptr;
  const uint64_t version = reads_context ? context_version_of(globals, PyThreadState_Get()) : 0;
  return begin_call(globals, *calls.buffer, name.name(), name.hash, version);
}

[[gnu::always_inline]] inline int enter(ThreadCalls& calls, const Begun& begun) {
  const uint64_t tracing = tracer->tracing;
  const CallName* name = CodeNames::find(reinterpret_cast<PyObject*>(begun.code), begun.instruction, tracer->names.version());
  const bool known = name != nullptr && name->hides == Hides::kNothing;
  if (__builtin_expect(!known || calls.hidden_from != kNothingHidden || is_deep_enough(calls), 0)) {
    return enter_slowly(calls, begun);
  }
  push(calls, begin(calls, *name), tracing);
  return 0;
}

inline bool hides_its_c_calls(const ThreadCalls& calls) {
  return calls.hidden_from != kNothingHidden || is_deep_enough(calls) ||
         (!calls.stack.empty() && (calls.stack.back() & ThreadCalls::kHidden) != 0);
}

[[gnu::always_inline]] inline int enter_c(ThreadCalls& calls, PyObject* callable, const CFunction& function) {
  const uint64_t tracing = tracer->tracing;
  if (hides_its_c_calls(calls)) return push(calls, ThreadCalls::kOfC, tracing), 0;
  const CallName* name = tracer->names.functions().find(function);
  if (__builtin_expect(name == nullptr, 0)) name = tracer->names.of_function(callable, function);
  if (__builtin_expect(name == nullptr, 0) && without_name() < 0) return -1;
  push(calls, (name != nullptr ? begin(calls, *name) : 0) | ThreadCalls::kOfC, tracing);
  return 0;
}

// The innermost Python call is over, and with it what C functions it called of which no exit was told.
[[gnu::always_inline]] inline void leave_python(ThreadCalls& calls) {
  while (!calls.stack.empty() && (pop(calls) & ThreadCalls::kOfC) != 0) continue;
}

[[gnu::always_inline]] inline void leave_c(ThreadCalls& calls) {
  if (!calls.stack.empty() && (calls.stack.back() & ThreadCalls::kOfC) != 0) pop(calls);
}

}  // namespace recfn
