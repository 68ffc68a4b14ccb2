// What the calling thread works for, and what it propagates to the threads that work for it.
//
//     a range begins ─► propagate_later ─► PyTorch's next begin ─┐
//     a refresh, a range's end ─► propagate ─────────────────────┴► PyTorch's state ─► its threads
//
// PyTorch copies its thread-local state where work is launched, and installs the copy where that
// runs (observer/propagation.hpp). There the launching task's entry stands for what a contextvars
// context has elsewhere. Such a thread reads it without the GIL: whoever launched the work may hold
// that while it waits.
#pragma once
#include <cstdint>

#include "core/thread_buffer.hpp"
#include "parents/tasks/task_chain.hpp"

namespace recfn {

// In a thread that Python may not have started.
const PropagatedContext* find_propagated();

// Null where the thread works for itself. Needs no GIL.
inline const PropagatedContext* propagated_to(const ThreadBuffer* buffer) {
  return buffer != nullptr && buffer->refresh.is_python_thread ? nullptr : find_propagated();
}

// A number that changes with what is propagated.
uint64_t propagated_version(const PropagatedContext& propagated);

// What the launching task is in. False where only Python knows, since no refresh has come by there.
bool view_propagated(const PropagatedContext& propagated, TaskView& view);

// From here on the calling thread, whose buffer that is, propagates that, null for nothing.
void propagate(ThreadBuffer* buffer, TaskEntry* entry);

// The same from PyTorch's next begin in the thread on: a range in which none begins costs next to
// nothing.
void propagate_later(ThreadBuffer* buffer, TaskEntry* entry);

// The task is in nothing, and the span that the last refresh found may be current no longer: it is
// to be freed with its last user.
void propagate_nothing(ThreadBuffer& buffer);

// Propagates the range of PyTorch's that the calling thread is in, where that began later than what
// its task is in.
void propagate_torch_range(ThreadBuffer& buffer);

// Propagates what the entry lies in from here on, and the entry no longer.
void propagate_outer(ThreadBuffer& buffer, const TaskEntry& entry);

// The entry is over, which the calling thread may propagate, or would later. `buffer`: the
// thread's, or null. In the header, since each range asks as it ends: a call takes it two
// nanoseconds more.
inline void stop_propagating(ThreadBuffer* buffer, const TaskEntry& entry) {
  if (buffer == nullptr) return;
  const auto& propagation = buffer->propagation;
  if (propagation.pending == &entry || propagation.serial == entry.serial) {
    propagate_outer(*buffer, entry);
  }
}

// As RecorderHooks has them. The thread that drops what was propagated to it may not have the GIL:
// the next one that propagates something drops the references, of which the entry may have several.
void propagate_now(ThreadBuffer& buffer);
void release_later(void* entry);

}  // namespace recfn
