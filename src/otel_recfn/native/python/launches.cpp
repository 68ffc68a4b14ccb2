#include "python/launches.hpp"

#include <atomic>

#include "core/registry.hpp"
#include "python/task_chain.hpp"

namespace recfn {

using namespace task_chain;

namespace {

std::atomic<TaskEntry*> let_go_entries{nullptr};

// The thread that drops a launch may not have the GIL: the next one that hands something on gives the entry back, which several
// launches may have had.
void let_go(void* entry) {
  auto* gone = static_cast<TaskEntry*>(entry);
  if (gone == nullptr || gone->times_let_go.fetch_add(1, std::memory_order_relaxed) > 0) return;
  gone->next_let_go = let_go_entries.load(std::memory_order_relaxed);
  while (!let_go_entries.compare_exchange_weak(gone->next_let_go, gone, std::memory_order_release, std::memory_order_relaxed)) {
  }
}

void give_back() {
  if (let_go_entries.load(std::memory_order_relaxed) == nullptr) return;
  TaskEntry* entry = let_go_entries.exchange(nullptr, std::memory_order_acquire);
  while (entry != nullptr) {
    TaskEntry* next = entry->next_let_go;
    for (uint32_t times = entry->times_let_go.exchange(0); times > 0; --times) Py_DECREF(reinterpret_cast<PyObject*>(entry));
    entry = next;
  }
}

uint64_t serial_of(const TaskEntry* entry) { return entry != nullptr ? entry->serial : 0; }

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
  const auto set = globals().hand_on.load(std::memory_order_relaxed);
  if (set == nullptr || buffer == nullptr || buffer->handed_on == serial_of(entry)) return;
  Launch launch{entry, kLaunchedTask | serial_of(entry), buffer->number};
  if (const Launch* other = launch_of_another(buffer)) launch.task = other->task, launch.thread = other->thread;
  Py_XINCREF(reinterpret_cast<PyObject*>(entry));
  buffer->handed_on = serial_of(entry);
  void* const gone = set(buffer->carried, launch);
  Py_XDECREF(static_cast<PyObject*>(gone));
  give_back();
}

void hand_on_no_more(const TaskEntry& entry, TaskEntry* outer) {
  ThreadBuffer* buffer = registry().existing();
  if (buffer != nullptr && buffer->handed_on == entry.serial) hand_on(buffer, outer);
}

void start_launches() { globals().let_go.store(let_go); }

}  // namespace recfn
