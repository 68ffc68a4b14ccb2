// What a task is in: its open Python ranges, and the spans it made current inside of them, in the
// order in which they began. (A span that was current before needs no entry: all ranges are later.)
//
//     task's context --> innermost TaskEntry --outer--> TaskEntry --outer--> ...     an immutable
//     value of one ContextVar
//
// A ContextVar gives each asyncio task, greenlet and thread a chain of its own, and a child task
// (or `asyncio.to_thread`) the chain of its parent as it was at the launch:
//
//     task A   range "load" ◄── span ◄── range "epoch" ◄── innermost in A
//                                 ▲
//     task B, launched there      └───── range "fetch" ◄── innermost in B
//
// A range that ended out of order, or elsewhere, stays in the chains that have it and is skipped
// from then on; so is a span that is no longer current. Everything here needs the GIL.
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
  // While `attached` is attached, the program sees `exposed`, another context: one with the span of
  // a step from its begin on, one with a range as a span once somebody asks.
  PyObject* attached;
  PyObject* exposed;
  // Of a range: who decided last whether it is shown; without `attached` it isn't.
  uint64_t exposed_by;
  // Of a range after which a trace may be called: a module's call, or a step; else null.
  PyObject* name;
  uint64_t token;   // address of what undoes the attach
  uint32_t length;  // of the chain from here, at most
  uint64_t event_id, root, serial;
  uint64_t root_without_calls;           // the outermost range that is no Python call
  uint64_t epoch;                        // the epoch of a range, and of that around a span
  uint64_t since_thread, since_ordinal;  // it began in this thread, after that many begins of it
  // Of a range: the other threads whose last refresh found it, a bit each (`thread_bit`).
  uint64_t threads_inside;
  int64_t cpu_began_ns;      // what that thread had worked when the range began; -1: nobody asks
  uint64_t context_version;  // of Python's state there, then
  Context context;           // of the range's outermost one; of a span what is current in it
  // References that nobody with the GIL has given back yet; then it is in a list.
  std::atomic<uint32_t> times_released;
  TaskEntry* next_released;
  uint8_t scope, source;
  uint32_t flags;  // EventFlag, as known at the begin of a range that has a name here
  bool ended;
  bool was_exposed;  // the program has seen the range as a span
  bool has_context;  // `context` is known: a span's is that at the first refresh

  // Of a span.
  void set_context(const Context& known) {
    context = known;
    epoch = globals().epoch.load(std::memory_order_relaxed);
    has_context = true;
  }

  // In the same context and outermost range as that one.
  void copy_parent_from(const TaskEntry& other) {
    context = other.context;
    root = other.root;
    root_without_calls = other.root_without_calls;
  }

  // What begins in it lies in this range.
  void enclose_with_itself() {
    context.enclosing = event_id;
    context.root = root;
    has_context = true;
  }
};

extern PyTypeObject TaskEntryType;

inline uint64_t current_epoch() { return globals().epoch.load(std::memory_order_relaxed); }

inline bool is_over(const TaskEntry& entry, uint64_t epoch) {
  if (entry.ended || (entry.range != nullptr && entry.range->ended)) return true;
  return entry.span == nullptr && entry.epoch != epoch;
}

inline TaskEntry* living(TaskEntry* entry, uint64_t epoch = current_epoch()) {
  while (entry != nullptr && is_over(*entry, epoch)) entry = entry->outer;
  return entry;
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

// The calling task has detached that span.
void pop_span(TaskEntry* entry);

// Gives a thread that has no contextvars context yet one, by setting the chain to nothing.
void make_context(ThreadBuffer& buffer);

// What is shown is the range's, however often it is entered.
inline TaskEntry& own_entry(TaskEntry& range) {
  return range.range != nullptr ? *range.range : range;
}

// No longer shows another context in the place of the attached one.
void expose_nothing(TaskEntry& entry);

// Larger than that of every entry.
uint64_t next_serial();

// To be called once, before anything else here. False, with a Python error set, where there is no
// memory.
bool start_task_chain();

// It began, or was entered, just now.
inline void since_now(TaskEntry& entry) {
  entry.since_thread = registry().thread_number();
  const ThreadBuffer* const buffer = registry().existing();
  if (buffer != nullptr) entry.since_ordinal = buffer->ordinal.load(std::memory_order_relaxed);
}

// The calling thread's next begin refreshes its context: CPython's version of it doesn't change
// where a variable is set. A thread that recorded nothing has no cached context to renew.
inline void context_has_changed() {
  if (ThreadBuffer* buffer = registry().existing()) buffer->refresh.stale |= kContextStale;
}

}  // namespace recfn
