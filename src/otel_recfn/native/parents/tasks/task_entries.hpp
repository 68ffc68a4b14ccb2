// A Python range's entry in the chain of its task, from the range's begin to its end.
//
//     with record_function    enter_range ─────► the caller has it ──────────► leave_range
//     begin(), end()          keep_open_range ─► found by its event id ──────► forget_open_range
//
//     at its begin   its context and outermost range, for what begins in it (range_context.hpp)
//                    what the thread has worked, if it tells of CPU time
//                    pushed: the innermost of the task's chain, unless it is asynchronous
//     at its end     over, in every chain that has it; nothing propagates it any more
//                    the threads whose last refresh found it refresh again
//                    what the thread has worked since
#pragma once
#include <cstdint>

#include "core/thread_buffer.hpp"
#include "cpython/python.hpp"
#include "parents/tasks/task_chain.hpp"

namespace recfn {

// The calling thread has begun a range, and from here on its task is in it. The caller owns what it
// returns: null, with no error set, where there is no memory.
TaskEntry* enter_range(ThreadBuffer& buffer, uint64_t event_id, uint32_t scope, uint32_t source);

// What is known of a range when it ends.
struct RangeEnd {
  uint32_t flags = 0;  // EventFlag
  int64_t cpu_time_ns = -1;
  uint64_t at = 0;  // in ticks, where its CPU time is known: when it ended; else 0
};

// It is over, in every task that has it. Takes what enter_range returned. `buffer`: of the thread
// that ends it, or null.
RangeEnd leave_range(TaskEntry* entry, ThreadBuffer* buffer);

// The same for ranges that are begun and ended by their ids. Unless it is asynchronous, the calling
// task is in it from here on.
void keep_open_range(ThreadBuffer& buffer, uint64_t event_id, uint32_t scope, uint32_t source,
                     uint32_t flags, PyObject* name);
RangeEnd forget_open_range(uint64_t event_id, ThreadBuffer* buffer);
void forget_open_ranges();

// Of the ranges that are begun and ended by their ids; null where it isn't open.
TaskEntry* open_range(uint64_t event_id);

// It is over, in every task that has it. `buffer`: the calling thread's, or null.
void end_range_entry(ThreadBuffer* buffer, TaskEntry& entry);

// A refresh of the thread has found the range, whose end makes the answer wrong. The end of a range
// of its own the thread sees on its stack.
inline void note_thread_inside(TaskEntry& range, const ThreadBuffer& buffer) {
  if (range.since_thread != buffer.number) range.threads_inside |= thread_bit(buffer.number);
  if (range.range != nullptr) note_thread_inside(*range.range, buffer);
}

}  // namespace recfn
