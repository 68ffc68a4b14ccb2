// What a thread hands on to the threads that work for it, and what those find there.
#include <atomic>
#include <utility>

#include "core/registry.hpp"
#include "python/task_entries.hpp"

namespace recfn {
namespace {

std::atomic<TaskEntry*> let_go_entries{nullptr};

// The thread that drops a launch may not have the GIL: the next one that hands something on gives
// the entry back, which several launches may have had.
void let_go(void* entry) {
  auto* gone = static_cast<TaskEntry*>(entry);
  if (gone == nullptr || gone->times_let_go.fetch_add(1, std::memory_order_relaxed) > 0) return;
  gone->next_let_go = let_go_entries.load(std::memory_order_relaxed);
  while (!let_go_entries.compare_exchange_weak(gone->next_let_go, gone, std::memory_order_release,
                                               std::memory_order_relaxed)) {
  }
}

void give_back() {
  if (let_go_entries.load(std::memory_order_relaxed) == nullptr) return;
  TaskEntry* entry = let_go_entries.exchange(nullptr, std::memory_order_acquire);
  while (entry != nullptr) {
    TaskEntry* next = entry->next_let_go;
    for (uint32_t times = entry->times_let_go.exchange(0); times > 0; --times)
      Py_DECREF(reinterpret_cast<PyObject*>(entry));
    entry = next;
  }
}

uint64_t serial_of(const TaskEntry* entry) { return entry != nullptr ? entry->serial : 0; }

// Takes a reference. Needs no GIL.
void set_launch(ThreadBuffer& buffer, TaskEntry* entry) {
  const auto set = globals().hand_on.load(std::memory_order_relaxed);
  if (set == nullptr) return let_go(entry);
  Launch launch{entry, kLaunchedTask | serial_of(entry), buffer.number};
  if (const Launch* other = launch_of_another(&buffer))
    launch.task = other->task, launch.thread = other->thread;
  buffer.handed_on = serial_of(entry);
  let_go(set(buffer.carried, launch));
}

void hand_on_now(ThreadBuffer& buffer) {
  auto* entry = static_cast<TaskEntry*>(std::exchange(buffer.to_hand_on, nullptr));
  buffer.handed_on == serial_of(entry) ? let_go(entry) : set_launch(buffer, entry);
}

void change_launch(ThreadBuffer& buffer, TaskEntry* entry) {
  if (buffer.handed_on == serial_of(entry)) return;
  Py_XINCREF(reinterpret_cast<PyObject*>(entry));
  set_launch(buffer, entry);
  give_back();
}

void change_later(ThreadBuffer& buffer, TaskEntry* entry) {
  auto* before = static_cast<TaskEntry*>(std::exchange(buffer.to_hand_on, entry));
  Py_XINCREF(reinterpret_cast<PyObject*>(entry));
  Py_XDECREF(reinterpret_cast<PyObject*>(before));
}

}  // namespace

const Launch* launch_in_other_thread() {
  const auto find = globals().launch.load(std::memory_order_relaxed);
  const Launch* launch = find != nullptr ? find() : nullptr;
  return launch != nullptr && launch->thread != registry().thread_number() ? launch : nullptr;
}

uint64_t launch_version(const Launch& launch) {
  return kLaunchedTask | serial_of(static_cast<const TaskEntry*>(launch.entry));
}

bool view_launch(const Launch& launch, TaskView& view) {
  const auto* entry = static_cast<const TaskEntry*>(launch.entry);
  if (entry != nullptr && !entry->placed) return false;
  view.tasks[0] = launch.task;
  if (entry == nullptr) return true;
  view.has_latest = true;
  view.since_thread = entry->since_thread, view.since_ordinal = entry->since_ordinal;
  view.current = entry->context;
  view.current.enclosing = view.current.root = 0;
  if (!is_range(*entry) || entry->recording != recording_now()) return true;
  view.range = entry->event_id;
  view.range_context = entry->context;
  return true;
}

void hand_on(ThreadBuffer* buffer, TaskEntry* entry) {
  if (buffer == nullptr) return;
  change_later(*buffer, nullptr);
  change_launch(*buffer, entry);
}

void hand_on_later(ThreadBuffer* buffer, TaskEntry* entry) {
  if (buffer != nullptr) change_later(*buffer, entry);
}

void hand_on_no_more(const TaskEntry& entry, TaskEntry* outer) {
  ThreadBuffer* buffer = registry().existing();
  if (buffer == nullptr) return;
  if (buffer->to_hand_on == &entry) {
    change_later(*buffer, buffer->handed_on != serial_of(outer) ? outer : nullptr);
  } else if (buffer->handed_on == entry.serial) {
    change_launch(*buffer, outer);
    if (outer == nullptr)
      buffer->context_stale |= kContextStale;  // the current span may be no entry of the task's
  }
}

void start_launches() {
  globals().hand_on_now.store(hand_on_now);
  globals().let_go.store(let_go);
}

}  // namespace recfn
