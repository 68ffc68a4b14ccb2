// What the calling thread works for, and what it hands on to the threads that work for it.
//
//     a range begins ─► hand_on_later ─► PyTorch's next begin ─┐
//     a look, a range's end ─► hand_on ────────────────────────┴► PyTorch's thread-local state ─► another thread
//
// PyTorch copies its thread-local state where work is launched, and installs the copy where that runs (observer/launch.hpp). There
// the launching task's entry stands for what a contextvars context has elsewhere. Such a thread reads it without the GIL: whoever
// launched the work may hold that while it waits.
#pragma once
#include "python/task_entries.hpp"

namespace recfn {

// In a thread that Python may not have started.
const Launch* launch_in_other_thread();

// Null where the thread works for itself. Needs no GIL.
inline const Launch* launch_of_another(const ThreadBuffer* buffer) {
  return buffer != nullptr && buffer->of_python ? nullptr : launch_in_other_thread();
}

// Changes with the launch.
uint64_t launch_version(const Launch& launch);

// What the launching task is in. False where only Python knows, since no look has come by there.
bool view_launch(const Launch& launch, TaskView& view);

// From here on the calling thread, whose buffer that is, hands that on, null for nothing.
void hand_on(ThreadBuffer* buffer, TaskEntry* entry);

// The same from PyTorch's next begin in the thread on: a range in which none begins costs next to nothing.
void hand_on_later(ThreadBuffer* buffer, TaskEntry* entry);

// The entry is over: if it is handed on, or would be later, `outer` is from here on.
void hand_on_no_more(const TaskEntry& entry, TaskEntry* outer);

// To be called once.
void start_launches();

}  // namespace recfn
