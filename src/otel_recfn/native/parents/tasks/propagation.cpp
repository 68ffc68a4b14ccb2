#include "parents/tasks/propagation.hpp"

#include <atomic>
#include <utility>

#include "core/registry.hpp"
#include "parents/tasks/range_context.hpp"

namespace recfn {
namespace {

// Those that threads without the GIL have released, a stack that is linked by `next_released`.
std::atomic<TaskEntry*> released_entries{nullptr};

// Drops the references, with the GIL.
void drop_released() {
  // Mostly there are none, and an exchange would lock the bus for nothing.
  if (released_entries.load(std::memory_order_relaxed) == nullptr) return;
  TaskEntry* entry = released_entries.exchange(nullptr, std::memory_order_acquire);
  while (entry != nullptr) {
    // Read before the count is taken: from then on another thread may put the entry on the stack
    // anew, and the last reference may go below.
    TaskEntry* next = entry->next_released;
    for (uint32_t times = entry->times_released.exchange(0); times > 0; --times) {
      Py_DECREF(reinterpret_cast<PyObject*>(entry));
    }
    entry = next;
  }
}

uint64_t serial_of(const TaskEntry* entry) { return entry != nullptr ? entry->serial : 0; }

// Takes a reference. Needs no GIL.
void set_propagated(ThreadBuffer& buffer, TaskEntry* entry) {
  const auto set = observer_hooks(globals()).set_propagated;
  if (set == nullptr) return release_later(entry);
  PropagatedContext propagated{entry, kPropagatedTask | serial_of(entry), buffer.number};
  if (const PropagatedContext* other = propagated_to(&buffer)) {
    propagated.task = other->task;
    propagated.thread = other->thread;
  }
  buffer.propagation.serial = serial_of(entry);
  release_later(set(buffer.propagation.carrier, propagated));
}

void change_propagated(ThreadBuffer& buffer, TaskEntry* entry) {
  if (buffer.propagation.serial == serial_of(entry)) return;
  Py_XINCREF(reinterpret_cast<PyObject*>(entry));
  set_propagated(buffer, entry);
  drop_released();
}

void change_pending(ThreadBuffer& buffer, TaskEntry* entry) {
  auto* before = static_cast<TaskEntry*>(std::exchange(buffer.propagation.pending, entry));
  Py_XINCREF(reinterpret_cast<PyObject*>(entry));
  Py_XDECREF(reinterpret_cast<PyObject*>(before));
}

}  // namespace

const PropagatedContext* find_propagated() {
  const auto find = globals().propagated.load(std::memory_order_relaxed);
  const PropagatedContext* propagated = find != nullptr ? find() : nullptr;
  if (propagated == nullptr) return nullptr;
  // What the thread itself propagates is none of its own.
  return propagated->thread != registry().thread_number() ? propagated : nullptr;
}

uint64_t propagated_version(const PropagatedContext& propagated) {
  return kPropagatedTask | serial_of(static_cast<const TaskEntry*>(propagated.entry));
}

bool view_propagated(const PropagatedContext& propagated, TaskView& view) {
  const auto* entry = static_cast<const TaskEntry*>(propagated.entry);
  if (entry != nullptr && !entry->has_context) return false;
  view.tasks[0] = propagated.task;
  if (entry == nullptr) return true;
  view.has_latest = true;
  view.since_thread = entry->since_thread;
  view.since_ordinal = entry->since_ordinal;
  view.current = entry->context;
  const bool is_of_current_epoch = entry->epoch == current_epoch();
  if (!is_range(*entry) && is_of_current_epoch) return true;
  view.current.enclosing = 0;
  view.current.root = 0;
  if (!is_of_current_epoch) return true;
  view.range = entry->event_id;
  view.range_context = entry->context;
  return true;
}

void propagate(ThreadBuffer* buffer, TaskEntry* entry) {
  if (buffer == nullptr) return;
  change_pending(*buffer, nullptr);
  change_propagated(*buffer, entry);
}

void propagate_later(ThreadBuffer* buffer, TaskEntry* entry) {
  if (buffer != nullptr) change_pending(*buffer, entry);
}

void propagate_torch_range(ThreadBuffer& buffer) {
  const uint32_t index = parent_index(buffer, buffer.open.depth);
  if (index == kNotOnStack || buffer.stack[index].is_entered()) return;
  if (buffer.refresh.parent == kByContext && index < buffer.open.since_refresh) return;
  TaskEntry* entry = new_entry();
  if (entry == nullptr) return;
  entry->event_id = make_event_id(buffer.number, buffer.stack[index].ordinal());
  entry->epoch = buffer.recording.epoch;
  entry->since_thread = buffer.number;
  entry->since_ordinal = buffer.stack[index].ordinal();
  set_context_from_stack(*entry, buffer, index, innermost());
  entry->enclose_with_itself();
  propagate(&buffer, entry);
  Py_DECREF(reinterpret_cast<PyObject*>(entry));
  // Nobody tells when it ends: the thread's next begin propagates what is current again.
  buffer.refresh.stale |= kContextStale;
}

void propagate_nothing(ThreadBuffer& buffer) {
  if (buffer.propagation.serial != UINT64_MAX) change_propagated(buffer, nullptr);
}

void propagate_outer(ThreadBuffer& buffer, const TaskEntry& entry) {
  TaskEntry* const outer = living(entry.outer);
  if (buffer.propagation.pending == &entry) {
    change_pending(buffer, buffer.propagation.serial != serial_of(outer) ? outer : nullptr);
  } else {
    change_propagated(buffer, outer);
    if (outer == nullptr) {
      // The current span may be no entry of the task's.
      buffer.refresh.stale |= kContextStale;
    }
  }
}

void propagate_now(ThreadBuffer& buffer) {
  auto* entry = static_cast<TaskEntry*>(std::exchange(buffer.propagation.pending, nullptr));
  if (buffer.propagation.serial == serial_of(entry)) {
    release_later(entry);
  } else {
    set_propagated(buffer, entry);
  }
}

void release_later(void* entry) {
  auto* gone = static_cast<TaskEntry*>(entry);
  // Only the first of several puts it on the stack, where it stands once.
  if (gone == nullptr || gone->times_released.fetch_add(1, std::memory_order_relaxed) > 0) return;
  gone->next_released = released_entries.load(std::memory_order_relaxed);
  while (!released_entries.compare_exchange_weak(
      gone->next_released, gone, std::memory_order_release, std::memory_order_relaxed)) {
  }
}

}  // namespace recfn
