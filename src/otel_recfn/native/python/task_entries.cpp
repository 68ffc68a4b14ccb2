#include "python/task_entries.hpp"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "core/begin_end.hpp"
#include "core/range_parent.hpp"
#include "python/task_contexts.hpp"

namespace recfn {
namespace {

PyObject* innermost_var = nullptr;
uint64_t last_serial = 0;

// Borrowed: the task's context holds it, or what launched the thread's work.
TaskEntry* value_in_task(const ThreadBuffer* buffer) {
  if (const Launch* launch = launch_of_another(buffer))
    return static_cast<TaskEntry*>(launch->entry);
  PyObject* value = nullptr;
  if (PyContextVar_Get(innermost_var, nullptr, &value) < 0) PyErr_Clear();
  Py_XDECREF(value);
  return value != nullptr && Py_TYPE(value) == &TaskEntryType ? reinterpret_cast<TaskEntry*>(value)
                                                              : nullptr;
}

// A span is handed on by the next look, which knows its context.
void set_value_in_task(ThreadBuffer* buffer, TaskEntry* entry) {
  if (launch_of_another(buffer) != nullptr) return hand_on(buffer, entry);
  if (entry != nullptr && entry->placed) hand_on_later(buffer, entry);
  Py_XDECREF(PyContextVar_Set(innermost_var,
                              entry != nullptr ? reinterpret_cast<PyObject*>(entry) : Py_None));
  PyErr_Clear();
}

void set_outer(TaskEntry& entry, TaskEntry* outer) {
  if (entry.outer == outer) return;
  Py_XINCREF(outer);
  Py_XSETREF(entry.outer, outer);
}

// Entries live for one range each: a few are kept for the next.
constexpr int kMaxSpareEntries = 16;
TaskEntry* spare_entries[kMaxSpareEntries];
int spare_entry_count = 0;

// One after the other: a long chain freed by recursion would overflow the C stack.
void release_chain(TaskEntry* entry) {
  while (entry != nullptr && Py_REFCNT(reinterpret_cast<PyObject*>(entry)) == 1) {
    TaskEntry* outer = std::exchange(entry->outer, nullptr);
    Py_DECREF(reinterpret_cast<PyObject*>(entry));
    entry = outer;
  }
  Py_XDECREF(reinterpret_cast<PyObject*>(entry));
}

// Index on the stack of what the range at this depth of it lies in, as `find_parent` found it;
// kNowhere if there is nothing.
uint32_t place_of_parent(const ThreadBuffer& buffer, uint32_t depth) {
  const bool by_ordinal = buffer.look_parent == kByOrdinal;
  const uint32_t lowest = by_ordinal ? std::max(buffer.look_depth, buffer.floor) : buffer.floor;
  uint32_t index = depth;
  while (index-- > lowest) {
    if (encloses_by_place(buffer.stack[index])) return index;
  }
  for (++index; by_ordinal && index-- > buffer.floor;) {
    if (buffer.stack[index].ordinal() == buffer.look_ordinal) return index;
  }
  return kNowhere;
}

// The entry of an open range that this task, or whoever keeps it by its id, has; null where it has
// none.
const TaskEntry* entry_of(uint64_t event_id, const TaskEntry* newest) {
  const TaskEntry* entry = newest;
  while (entry != nullptr && entry->event_id != event_id) entry = entry->outer;
  return entry != nullptr ? entry : open_range(event_id);
}

// What a range of PyTorch's lies in that began in what was current: when something begins in it,
// that is current again.
const Context& context_of_base(const ThreadBuffer& buffer, uint64_t ordinal) {
  return ordinal > buffer.context_since ? buffer.context : buffer.current_below;
}

// What its parent on the stack lies in: a range of Python's says so itself, PyTorch's lie in the
// next one below, if there is one: calls that were around them may have been ended.
void place_by_stack(TaskEntry& entry, const ThreadBuffer& buffer, uint32_t parent,
                    const TaskEntry* newest) {
  uint64_t outermost = 0;
  bool is_base = false;
  for (uint32_t index = parent + 1; !is_base && index-- > buffer.floor;) {
    const OpenEntry& open = buffer.stack[index];
    if (!encloses_by_place(open)) continue;
    outermost = make_event_id(buffer.number, open.ordinal());
    if (!is_python_call(buffer, open)) entry.beside_calls = outermost;
    const TaskEntry* known = open.is_entered() ? entry_of(open.key, newest) : nullptr;
    if (known != nullptr) {
      entry.context = known->context, entry.root = known->root,
      entry.beside_calls = known->beside_calls;
      return;
    }
    is_base = open.is_base();
  }
  if (outermost == 0) return;
  entry.context = context_of_base(buffer, outermost & kOrdinalMask);
  entry.root = entry.context.enclosing != 0 ? entry.context.root : outermost;
  if (entry.context.enclosing != 0) entry.beside_calls = entry.root;
}

// Whether the parent of the thread's newest range is what the last look found, and not a range on
// the stack.
bool begun_by_context(const ThreadBuffer& buffer) {
  return buffer.stack[buffer.depth - 1].is_base();
}

void place_entry(TaskEntry& entry, const ThreadBuffer& buffer, const TaskEntry* around) {
  entry.context = buffer.context;
  entry.root = entry.beside_calls = entry.event_id;
  if (begun_by_context(buffer)) {
    if (buffer.context.enclosing != 0) entry.root = entry.beside_calls = buffer.context.root;
  } else if (around != nullptr && is_range(*around)) {
    entry.context = around->context, entry.root = around->root,
    entry.beside_calls = around->beside_calls;
  } else {
    place_by_stack(entry, buffer, place_of_parent(buffer, buffer.depth - 1), around);
  }
  entry.context.enclosing = entry.event_id, entry.context.root = entry.root;
  entry.placed = true;
}

constexpr uint32_t kShortenEvery = 64, kMostSpans = 64;

// Leaves out what is over, and of the spans all but the newest: tasks that launch tasks inherit
// chains, and programs attach without ever detaching. Returns how long the chain is then.
uint32_t shorten(TaskEntry* entry) {
  const uint64_t recording = recording_now();
  uint32_t length = 1, spans = 0;
  for (;; ++length) {
    TaskEntry* outer = living(entry->outer, recording);
    while (outer != nullptr && !is_range(*outer) && ++spans > kMostSpans)
      outer = living(outer->outer, recording);
    set_outer(*entry, outer);
    if (outer == nullptr) return length;
    entry = outer;
  }
}

// Whether the range tells of CPU time: a module's call, a step, or what nothing is around but a
// step and Python calls.
bool tells_cpu_time(const TaskEntry& range, const TaskEntry* around) {
  if (range.scope != kUserScope) return false;
  if (range.source == kModuleSource || range.source == kStepSource ||
      range.beside_calls == range.event_id)
    return true;
  return around != nullptr && is_range(*around) && around->source == kStepSource;
}

// Adds what the thread worked in it, unless another one began it, or other tasks may have run in
// the thread meanwhile.
void add_cpu_time(const TaskEntry& range, ThreadBuffer& buffer, Left& left) {
  if (range.cpu_began_ns == -1 || range.since_thread != buffer.number) return;
  if (range.context_version != PyThreadState_Get()->context_ver && may_have_been_suspended())
    return;
  left.at = read_ticks(globals().use_cycle_counter);
  left.cpu_time_ns =
      std::max<int64_t>(0, worked_until(globals(), buffer, left.at) - range.cpu_began_ns);
}

TaskEntry* new_range_entry(ThreadBuffer& buffer, uint64_t event_id, uint32_t scope, uint32_t source,
                           const TaskEntry* around) {
  const uint32_t generation = buffer.generation;  // of the begin; a recording may have begun since
  TaskEntry* entry = new_entry();
  if (entry == nullptr) return nullptr;
  entry->event_id = event_id;
  entry->recording = generation;
  entry->scope = static_cast<uint8_t>(scope), entry->source = static_cast<uint8_t>(source);
  entry->since_thread = buffer.number, entry->since_ordinal = event_id & kOrdinalMask;
  place_entry(*entry, buffer, around);
  if (tells_cpu_time(*entry, around)) {
    entry->context_version = PyThreadState_Get()->context_ver;
    entry->cpu_began_ns = worked_until(globals(), buffer, buffer.began_at);
  }
  return entry;
}

// EventFlag bits that are known when the range ends.
uint32_t end_flags_of(const TaskEntry& range) {
  return range.shown != nullptr && range.shown != Py_None ? uint32_t{kShown} : 0;
}

using OpenRanges = std::unordered_map<uint64_t, TaskEntry*>;

// Of ranges that are begun and ended by their ids.
OpenRanges& open_ranges() {
  static auto* instance = new OpenRanges;
  return *instance;
}

// The entry that says of the current span what the look found; `latest` is what the task has of it.
// A new reference.
TaskEntry* placed_span(TaskEntry* latest, PyObject* span, const Context& current) {
  if (current == Context{}) return nullptr;
  if (latest != nullptr && !latest->placed) latest->context = current, latest->placed = true;
  if (latest != nullptr && latest->context == current) return Py_INCREF(latest), latest;
  TaskEntry* entry =
      new_entry();  // attached before we were there, or its context is suppressed now
  if (entry == nullptr) return nullptr;
  entry->span = Py_NewRef(span != nullptr ? span : Py_None);
  entry->context = current, entry->placed = true;
  return entry;
}

void view_tasks(ThreadBuffer& buffer, TaskView& view) {
  if (const Launch* launch = launch_of_another(&buffer)) {
    view.tasks[0] = launch->task;
    return;
  }
  if (PyThreadState_Get()->context == nullptr) {  // no context yet: setting a value makes one
    set_value_in_task(&buffer, nullptr);
  }
  view.task_count = entered_contexts(view.tasks, kMaxTasks);
}

}  // namespace

TaskEntry* innermost(const ThreadBuffer* buffer) {
  return living(value_in_task(buffer), recording_now());
}

TaskEntry* new_entry() {
  TaskEntry* entry;
  if (spare_entry_count > 0) {
    entry = spare_entries[--spare_entry_count];
    PyObject_Init(reinterpret_cast<PyObject*>(entry), &TaskEntryType);
  } else {
    entry = PyObject_New(TaskEntry, &TaskEntryType);
    if (entry == nullptr) return PyErr_Clear(), nullptr;
  }
  entry->outer = entry->range = nullptr;
  entry->span = entry->shown = nullptr;
  entry->token = entry->event_id = entry->root = entry->beside_calls = entry->recording =
      entry->since_thread = entry->since_ordinal = 0;
  entry->length = 0;
  entry->cpu_began_ns = -1;
  entry->ended = false;
  entry->times_let_go.store(0, std::memory_order_relaxed);
  entry->scope = entry->source = 0;
  entry->placed = false;
  entry->context = Context{};
  entry->serial = ++last_serial;
  return entry;
}

void free_entry(PyObject* self) {
  auto* entry = reinterpret_cast<TaskEntry*>(self);
  release_chain(entry->outer);
  Py_XDECREF(entry->range);
  Py_XDECREF(entry->span);
  Py_XDECREF(entry->shown);
  if (spare_entry_count < kMaxSpareEntries) {
    spare_entries[spare_entry_count++] = entry;
  } else {
    PyObject_Free(self);
  }
}

void push(ThreadBuffer* buffer, TaskEntry* entry, TaskEntry* outer) {
  set_outer(*entry, outer);
  entry->length = outer != nullptr ? outer->length + 1 : 1;
  if (entry->length % kShortenEvery == 0) entry->length = shorten(entry);
  set_value_in_task(buffer, entry);
}

// It stays in the chains, and is passed over there: taking it out would cost as much again as
// putting it in.
void end_range_entry(TaskEntry& entry) {
  entry.ended = true;
  hand_on_no_more(entry, living(entry.outer, recording_now()));
  Py_CLEAR(entry.shown);
}

void pop_span(TaskEntry* entry) {
  ThreadBuffer* buffer = registry().existing();
  TaskEntry* outer = living(entry->outer, recording_now());
  if (innermost(buffer) == entry) set_value_in_task(buffer, outer);
  hand_on_no_more(*entry, outer);
}

void hand_on_torchs_range(ThreadBuffer& buffer) {
  const uint32_t place = place_of_parent(buffer, buffer.depth);
  if (place == kNowhere || buffer.stack[place].is_entered()) return;
  if (buffer.look_parent == kByContext && place < buffer.look_depth) return;
  TaskEntry* entry = new_entry();
  if (entry == nullptr) return;
  entry->event_id = make_event_id(buffer.number, buffer.stack[place].ordinal());
  entry->recording = buffer.generation;
  entry->since_thread = buffer.number, entry->since_ordinal = buffer.stack[place].ordinal();
  place_by_stack(*entry, buffer, place, innermost());
  entry->context.enclosing = entry->event_id, entry->context.root = entry->root;
  entry->placed = true;
  hand_on(&buffer, entry);
  Py_DECREF(reinterpret_cast<PyObject*>(entry));
  buffer.context_stale |= kContextStale;  // nobody tells when it ends: the thread's next begin has
                                          // what is current handed on again
}

TaskEntry* enter_range(ThreadBuffer& buffer, uint64_t event_id, uint32_t scope, uint32_t source) {
  TaskEntry* outer = innermost(&buffer);
  TaskEntry* entry = new_range_entry(buffer, event_id, scope, source, outer);
  if (entry != nullptr) push(&buffer, entry, outer);
  return entry;
}

Left leave_range(TaskEntry* entry, ThreadBuffer* buffer) {
  if (entry == nullptr) return {};
  Left left{end_flags_of(*entry)};
  end_range_entry(*entry);
  if (buffer != nullptr) add_cpu_time(*entry, *buffer, left);
  Py_DECREF(reinterpret_cast<PyObject*>(entry));
  return left;
}

void view_task(ThreadBuffer& buffer, TaskView& view, PyObject* span) {
  view_tasks(buffer, view);
  TaskEntry* latest = innermost(&buffer);
  while (latest != nullptr && !is_range(*latest) && latest->span != span)
    latest = living(latest->outer, recording_now());
  if (latest != nullptr && is_range(*latest)) {
    hand_on(&buffer, latest);
  } else {
    TaskEntry* found = placed_span(latest, span, view.current);
    hand_on(&buffer, found);
    Py_XDECREF(found);
  }
  if (latest == nullptr) return;
  view.has_latest = true;
  view.since_thread = latest->since_thread, view.since_ordinal = latest->since_ordinal;
  if (!is_range(*latest)) return;
  view.range = latest->event_id;
  view.range_context = latest->context;
}

// Without memory the range has no entry: what begins in it gets the range around it as its parent.
void keep_open_range(ThreadBuffer& buffer, uint64_t event_id, uint32_t scope, uint32_t source,
                     bool enters) {
  TaskEntry* outer = innermost();
  TaskEntry* made = new_range_entry(buffer, event_id, scope, source, outer);
  if (made == nullptr) return;
  if (!had_memory_for([&] { open_ranges()[event_id] = made; })) return Py_DECREF(made);
  if (enters) {
    push(&buffer, made, outer);
  } else {
    made->cpu_began_ns = -1;  // others run meanwhile
  }
}

Left forget_open_range(uint64_t event_id, ThreadBuffer* buffer) {
  const auto found = open_ranges().find(event_id);
  if (found == open_ranges().end()) return {};
  TaskEntry* entry = found->second;
  open_ranges().erase(found);
  return leave_range(entry, buffer);
}

void forget_open_ranges() {
  OpenRanges forgotten;
  forgotten.swap(open_ranges());
  for (auto& [event_id, entry] : forgotten) Py_DECREF(entry);
}

uint64_t next_serial() { return ++last_serial; }

bool start_task_chain() {
  innermost_var = PyContextVar_New("otel_recfn_task", nullptr);
  return innermost_var != nullptr;
}

TaskEntry* open_range(uint64_t event_id) {
  const auto found = open_ranges().find(event_id);
  return found != open_ranges().end() ? found->second : nullptr;
}

}  // namespace recfn
