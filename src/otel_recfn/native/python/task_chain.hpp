// The chain of entries that a task's context holds, and what may be done to it.
#pragma once
#include "core/registry.hpp"
#include "python/task_entries.hpp"

namespace recfn {

extern PyTypeObject TaskEntryType;

namespace task_chain {

inline uint64_t recording_now() { return globals().generation.load(std::memory_order_relaxed); }

inline bool is_over(const TaskEntry& entry, uint64_t recording) {
  if (entry.ended || (entry.range != nullptr && entry.range->ended)) return true;
  return entry.span == nullptr && entry.recording != recording;
}

inline TaskEntry* living(TaskEntry* entry, uint64_t recording) {
  while (entry != nullptr && is_over(*entry, recording)) entry = entry->outer;
  return entry;
}

inline bool is_range(const TaskEntry& entry) { return entry.span == nullptr; }

// The calling task's; null where it is in nothing. Borrowed: the task's context holds it. `buffer` is the thread's, or null.
TaskEntry* innermost(const ThreadBuffer* buffer);
inline TaskEntry* innermost() { return innermost(registry().existing()); }

// In no chain yet. Null, with no error set, where there is no memory.
TaskEntry* new_entry();
void dealloc(PyObject* entry);

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

// To be called once, before anything else here. False, with a Python error set, where there is no memory.
bool start();

}  // namespace task_chain
}  // namespace recfn
