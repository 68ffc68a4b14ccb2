// What a task is in: its open Python ranges and the spans it made current, in the order in which
// they began.
//
//     task's context --> innermost TaskEntry --outer--> TaskEntry --outer--> ...     an immutable
//     value of one ContextVar
//
// A ContextVar gives each asyncio task, greenlet and thread a chain of its own, and a child task
// (or `asyncio.to_thread`) the chain of its parent as it was at the launch. A range that ended out
// of order, or elsewhere, stays in the chains that have it and is skipped from then on; so is a
// span that is no longer current. Everything here needs the GIL.
#pragma once
#include <atomic>
#include <cstdint>

#include "core/registry.hpp"
#include "core/thread_buffer.hpp"
#include "cpython/python.hpp"

namespace recfn {

struct TaskEntry {
  PyObject_HEAD
  TaskEntry* outer;
  TaskEntry* range;  // the range's own entry, where it is entered again
  PyObject* span;    // null: a range
  PyObject* shown;   // of whoever shows the range to the program
  uint64_t token;    // address of what undoes the attach
  uint32_t length;   // of the chain from here, at most
  uint64_t event_id, root, serial;
  uint64_t beside_calls;                 // the outermost range that is no Python call
  uint64_t recording;                    // the generation of a range
  uint64_t since_thread, since_ordinal;  // it began in this thread, after that many begins of it
  int64_t cpu_began_ns;      // what that thread had worked when the range began; -1: nobody asks
  uint64_t context_version;  // of Python's state there, then
  Context context;           // of the range's outermost one
  std::atomic<uint32_t>
      times_let_go;  // references that nobody with the GIL has given back yet; then it is in a list
  TaskEntry* next_let_go;
  uint8_t scope, source;
  bool ended;
  bool placed;  // `context` is known: a span's is that at the first look
};

// The calling thread has begun a range, and from here on its task is in it. The caller owns what it
// returns: null, with no error set, where there is no memory.
TaskEntry* enter_range(ThreadBuffer& buffer, uint64_t event_id, uint32_t scope, uint32_t source);

// What is known of a range when it ends.
struct Left {
  uint32_t flags = 0;  // EventFlag
  int64_t cpu_time_ns = -1;
  uint64_t at = 0;  // in ticks, where its CPU time is known: when it ended; else 0
};

// It is over, in every task that has it. Takes what enter_range returned. `buffer`: of the thread
// that ends it, or null.
Left leave_range(TaskEntry* entry, ThreadBuffer* buffer);

// The same for ranges that are begun and ended by their ids. `enters`: the calling task is in it
// from here on.
void keep_open_range(ThreadBuffer& buffer, uint64_t event_id, uint32_t scope, uint32_t source,
                     bool enters);
Left forget_open_range(uint64_t event_id, ThreadBuffer* buffer);
void forget_open_ranges();

// What the task that runs in the calling thread sees; `span` is the current span's object, or null.
void view_task(ThreadBuffer& buffer, TaskView& view, PyObject* span);

// Hands on the range of PyTorch's that the calling thread is in, where that began later than what
// its task is in.
void hand_on_torchs_range(ThreadBuffer& buffer);

// --- the chain of entries that a task's context holds, and what may be done to it

extern PyTypeObject TaskEntryType;

inline uint64_t recording_now() { return globals().generation.load(std::memory_order_relaxed); }

inline bool is_over(const TaskEntry& entry, uint64_t recording) {
  if (entry.ended || (entry.range != nullptr && entry.range->ended)) return true;
  return entry.span == nullptr && entry.recording != recording;
}

inline TaskEntry* living(TaskEntry* entry, uint64_t recording) {
  while (entry != nullptr && is_over(*entry, recording)) entry = entry->outer;
  return entry;
}

// (trace id high, low, span id, flags)
inline PyObject* context_words(const Context& context) {
  using Word = unsigned long long;
  return Py_BuildValue("(KKKK)", static_cast<Word>(context.trace_high),
                       static_cast<Word>(context.trace_low), static_cast<Word>(context.span_id),
                       static_cast<Word>(context.flags));
}

inline bool is_range(const TaskEntry& entry) { return entry.span == nullptr; }

// The calling task's; null where it is in nothing. Borrowed: the task's context holds it. `buffer`
// is the thread's, or null.
TaskEntry* innermost(const ThreadBuffer* buffer);
inline TaskEntry* innermost() { return innermost(registry().existing()); }

// In no chain yet. Null, with no error set, where there is no memory.
TaskEntry* new_entry();
void free_entry(PyObject* entry);

// From here on the calling task is in it; `outer` is its innermost entry.
void push(ThreadBuffer* buffer, TaskEntry* entry, TaskEntry* outer);

// It is over, in every task that has it.
void end_range_entry(TaskEntry& entry);

// The calling task has detached that span.
void pop_span(TaskEntry* entry);

// Of the ranges that are begun and ended by their ids; null where it isn't open.
TaskEntry* open_range(uint64_t event_id);

// Larger than that of every entry.
uint64_t next_serial();

// To be called once, before anything else here. False, with a Python error set, where there is no
// memory.
bool start_task_chain();

// --- launches

// What the calling thread works for, and what it hands on to the threads that work for it.
//
//     a range begins ─► hand_on_later ─► PyTorch's next begin ─┐
//     a look, a range's end ─► hand_on ────────────────────────┴► PyTorch's thread-local state ─►
//     another thread
//
// PyTorch copies its thread-local state where work is launched, and installs the copy where that
// runs (observer/launch.hpp). There the launching task's entry stands for what a contextvars
// context has elsewhere. Such a thread reads it without the GIL: whoever launched the work may hold
// that while it waits.

// In a thread that Python may not have started.
const Launch* launch_in_other_thread();

// Null where the thread works for itself. Needs no GIL.
inline const Launch* launch_of_another(const ThreadBuffer* buffer) {
  return buffer != nullptr && buffer->of_python ? nullptr : launch_in_other_thread();
}

// A number that changes with the launch.
uint64_t launch_version(const Launch& launch);

// What the launching task is in. False where only Python knows, since no look has come by there.
bool view_launch(const Launch& launch, TaskView& view);

// From here on the calling thread, whose buffer that is, hands that on, null for nothing.
void hand_on(ThreadBuffer* buffer, TaskEntry* entry);

// The same from PyTorch's next begin in the thread on: a range in which none begins costs next to
// nothing.
void hand_on_later(ThreadBuffer* buffer, TaskEntry* entry);

// The entry is over: if it is handed on, or would be later, `outer` is from here on.
void hand_on_no_more(const TaskEntry& entry, TaskEntry* outer);

// Registers with the recorder what launches call; called once, as the module is made.
void start_launches();

}  // namespace recfn
