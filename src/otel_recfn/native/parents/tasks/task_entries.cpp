#include "parents/tasks/task_entries.hpp"

#include <algorithm>
#include <unordered_map>

#include "parents/tasks/propagation.hpp"
#include "parents/tasks/range_context.hpp"
#include "parents/tasks/task_contexts.hpp"
#include "recording/begin_end.hpp"

namespace recfn {
namespace {

// Whether the range tells of CPU time: a module's call, a step, or what nothing is around but a
// step and Python calls. Others would pay for the kernel's clock, 200-400 ns each.
bool reports_cpu_time(const TaskEntry& range, const TaskEntry* enclosing_entry) {
  if (range.scope != kUserScope) return false;
  if (range.source == kModuleSource || range.source == kStepSource) return true;
  if (range.root_without_calls == range.event_id) return true;
  return enclosing_entry != nullptr && is_range(*enclosing_entry) &&
         enclosing_entry->source == kStepSource;
}

// Adds what the thread worked in it, unless another one began it, or other tasks may have run in
// the thread meanwhile.
void add_cpu_time(const TaskEntry& range, ThreadBuffer& buffer, RangeEnd& end) {
  if (range.cpu_began_ns == -1 || range.since_thread != buffer.number) return;
  const bool has_switched = range.context_version != PyThreadState_Get()->context_ver;
  if (has_switched && may_have_been_suspended()) return;
  end.at = read_ticks(globals().use_cycle_counter);
  end.cpu_time_ns =
      std::max<int64_t>(0, worked_until(globals(), buffer, end.at) - range.cpu_began_ns);
}

TaskEntry* new_range_entry(ThreadBuffer& buffer, uint64_t event_id, uint32_t scope, uint32_t source,
                           const TaskEntry* enclosing_entry) {
  const uint32_t epoch = buffer.recording.epoch;  // of the begin; a recording may have begun since
  TaskEntry* entry = new_entry();
  if (entry == nullptr) return nullptr;
  entry->event_id = event_id;
  entry->epoch = epoch;
  entry->scope = static_cast<uint8_t>(scope);
  entry->source = static_cast<uint8_t>(source);
  entry->since_thread = buffer.number;
  entry->since_ordinal = event_id & kOrdinalMask;
  set_context(*entry, buffer, enclosing_entry);
  if (reports_cpu_time(*entry, enclosing_entry)) {
    entry->context_version = PyThreadState_Get()->context_ver;
    entry->cpu_began_ns = worked_until(globals(), buffer, buffer.cpu.range_began_at);
  }
  return entry;
}

// EventFlag bits that are known when the range ends.
uint32_t end_flags_of(const TaskEntry& range) { return range.was_exposed ? uint32_t{kExposed} : 0; }

using OpenRanges = std::unordered_map<uint64_t, TaskEntry*>;

// Of ranges that are begun and ended by their ids. Never destroyed: threads may end ranges while
// the process exits.
OpenRanges& open_ranges() {
  static auto* instance = new OpenRanges;
  return *instance;
}

// Has the threads that are in an ended range refresh their contexts, and the one that began it, if
// another one ends it: the drain removes it from that one's stack only later.
void refresh_threads_inside(const ThreadBuffer* buffer, const TaskEntry& range) {
  const bool is_its_own = buffer != nullptr && range.since_thread == buffer->number;
  if (range.threads_inside == 0 && is_its_own) return;
  // Without a reader of contexts a refresh finds nothing, and each thread's stack alone counts.
  if (recorder_hooks(globals()).read_context == nullptr) return;
  registry().refresh_contexts(range.threads_inside | thread_bit(range.since_thread));
}

}  // namespace

// It stays in the chains, and is passed over there: taking it out would cost as much again as
// putting it in.
void end_range_entry(ThreadBuffer* buffer, TaskEntry& entry) {
  entry.ended = true;
  stop_propagating(buffer, entry);
  refresh_threads_inside(buffer, entry);
  // Last: it frees contexts of the program's, which may run Python, where the range is over
  // already.
  expose_nothing(entry);
}

TaskEntry* enter_range(ThreadBuffer& buffer, uint64_t event_id, uint32_t scope, uint32_t source) {
  TaskEntry* outer = innermost(&buffer);
  TaskEntry* entry = new_range_entry(buffer, event_id, scope, source, outer);
  if (entry != nullptr) push(&buffer, entry, outer);
  return entry;
}

RangeEnd leave_range(TaskEntry* entry, ThreadBuffer* buffer) {
  if (entry == nullptr) return {};
  RangeEnd end{end_flags_of(*entry)};
  end_range_entry(buffer, *entry);
  if (buffer != nullptr) add_cpu_time(*entry, *buffer, end);
  Py_DECREF(reinterpret_cast<PyObject*>(entry));
  return end;
}

// Without memory the range has no entry: what begins in it gets the range around it as its parent.
void keep_open_range(ThreadBuffer& buffer, uint64_t event_id, uint32_t scope, uint32_t source,
                     uint32_t flags, PyObject* name) {
  TaskEntry* outer = innermost();
  TaskEntry* made = new_range_entry(buffer, event_id, scope, source, outer);
  if (made == nullptr) return;
  if (source == kModuleSource || source == kStepSource) {
    made->name = Py_NewRef(name);
    made->flags = flags;
  }
  if (!had_memory_for([&] { open_ranges()[event_id] = made; })) return Py_DECREF(made);
  if ((flags & kAsync) == 0) {
    push(&buffer, made, outer);
  } else {
    made->cpu_began_ns = -1;  // others run meanwhile
  }
}

RangeEnd forget_open_range(uint64_t event_id, ThreadBuffer* buffer) {
  const auto found = open_ranges().find(event_id);
  if (found == open_ranges().end()) return {};
  TaskEntry* entry = found->second;
  // Before the entry is left, which may run Python, which may begin and end ranges here.
  open_ranges().erase(found);
  return leave_range(entry, buffer);
}

void forget_open_ranges() {
  OpenRanges forgotten;
  forgotten.swap(open_ranges());  // for the same reason
  for (auto& [event_id, entry] : forgotten) Py_DECREF(entry);
}

TaskEntry* open_range(uint64_t event_id) {
  const auto found = open_ranges().find(event_id);
  return found != open_ranges().end() ? found->second : nullptr;
}

}  // namespace recfn
