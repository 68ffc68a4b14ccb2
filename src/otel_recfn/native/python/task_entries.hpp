// What a task is in: its open Python ranges and the spans it made current, in the order in which they began.
//
//     task's context --> innermost TaskEntry --outer--> TaskEntry --outer--> ...     an immutable value of one ContextVar
//
// A ContextVar gives each asyncio task, greenlet and thread a chain of its own, and a child task (or `asyncio.to_thread`) the
// chain of its parent as it was at the launch. A range that ended out of order, or elsewhere, stays in the chains that have it
// and is skipped from then on; so is a span that is no longer current. Everything here needs the GIL.
#pragma once
#include "cpython/python.hpp"

#include <atomic>
#include <cstdint>

#include "core/thread_buffer.hpp"

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
  uint64_t recording;                     // the generation of a range
  uint64_t since_thread, since_ordinal;   // it began in this thread, after that many begins of it
  Context context;                        // of the range's outermost one
  std::atomic<uint32_t> times_let_go;     // references that nobody with the GIL has given back yet; then it is in a list
  TaskEntry* next_let_go;
  uint8_t scope, source;
  bool ended;
  bool placed;  // `context` is known: a span's is that at the first look
};

// The calling thread has begun a range, and from here on its task is in it. The caller owns what it returns: null, with no error
// set, where there is no memory.
TaskEntry* enter_range(ThreadBuffer& buffer, uint64_t event_id, uint32_t scope, uint32_t source);

// It is over, in every task that has it. Takes what enter_range returned; returns EventFlag bits of its end.
uint32_t leave_range(TaskEntry* entry);

// The same for ranges that are begun and ended by their ids. `enters`: the calling task is in it from here on.
void keep_open_range(ThreadBuffer& buffer, uint64_t event_id, uint32_t scope, uint32_t source, bool enters);
uint32_t forget_open_range(uint64_t event_id);
void forget_open_ranges();

// What the task that runs in the calling thread sees; `span` is the current span's object, or null.
void view_task(ThreadBuffer& buffer, TaskView& view, PyObject* span);

// Hands on the range of PyTorch's that the calling thread is in, where that began later than what its task is in.
void hand_on_torchs_range(ThreadBuffer& buffer);

}  // namespace recfn
