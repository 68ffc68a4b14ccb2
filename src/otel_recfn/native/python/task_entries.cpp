#include "python/task_entries.hpp"

#include <structmember.h>

#include <new>
#include <unordered_map>
#include <utility>

#include "core/registry.hpp"
#include "python/task_contexts.hpp"

namespace recfn {
namespace {

PyObject* innermost_var = nullptr;
uint64_t last_serial = 0;

extern PyTypeObject TaskEntryType;

uint64_t recording_now() { return globals().generation.load(std::memory_order_relaxed); }

bool is_over(const TaskEntry& entry, uint64_t recording) {
  if (entry.ended || (entry.range != nullptr && entry.range->ended)) return true;
  return entry.span == nullptr && entry.recording != recording;
}

TaskEntry* living(TaskEntry* entry, uint64_t recording) {
  while (entry != nullptr && is_over(*entry, recording)) entry = entry->outer;
  return entry;
}

// Borrowed: the task's context holds it.
TaskEntry* value_in_task() {
  PyObject* value = nullptr;
  if (PyContextVar_Get(innermost_var, nullptr, &value) < 0) PyErr_Clear();
  Py_XDECREF(value);
  return value != nullptr && Py_TYPE(value) == &TaskEntryType ? reinterpret_cast<TaskEntry*>(value) : nullptr;
}

void set_value_in_task(TaskEntry* entry) {
  Py_XDECREF(PyContextVar_Set(innermost_var, entry != nullptr ? reinterpret_cast<PyObject*>(entry) : Py_None));
  PyErr_Clear();
}

TaskEntry* innermost() { return living(value_in_task(), recording_now()); }

void set_outer(TaskEntry& entry, TaskEntry* outer) {
  if (entry.outer == outer) return;
  Py_XINCREF(outer);
  Py_XSETREF(entry.outer, outer);
}

// Entries live for one range each: a few are kept for the next.
constexpr int kMaxSpare = 16;
TaskEntry* spare[kMaxSpare];
int spares = 0;

TaskEntry* new_entry() {
  TaskEntry* entry;
  if (spares > 0) {
    entry = spare[--spares];
    PyObject_Init(reinterpret_cast<PyObject*>(entry), &TaskEntryType);
  } else {
    entry = PyObject_New(TaskEntry, &TaskEntryType);
    if (entry == nullptr) return PyErr_Clear(), nullptr;
  }
  entry->outer = entry->range = nullptr;
  entry->span = entry->shown = nullptr;
  entry->token = entry->event_id = entry->root = entry->recording = entry->since_thread = entry->since_ordinal = 0;
  entry->length = 0;
  entry->ended = false;
  entry->scope = entry->source = 0;
  entry->context = Context{};
  entry->serial = ++last_serial;
  return entry;
}

// One after the other: a long chain freed by recursion would overflow the C stack.
void release_chain(TaskEntry* entry) {
  while (entry != nullptr && Py_REFCNT(reinterpret_cast<PyObject*>(entry)) == 1) {
    TaskEntry* outer = std::exchange(entry->outer, nullptr);
    Py_DECREF(reinterpret_cast<PyObject*>(entry));
    entry = outer;
  }
  Py_XDECREF(reinterpret_cast<PyObject*>(entry));
}

void dealloc(PyObject* self) {
  auto* entry = reinterpret_cast<TaskEntry*>(self);
  release_chain(entry->outer);
  Py_XDECREF(entry->range);
  Py_XDECREF(entry->span);
  Py_XDECREF(entry->shown);
  if (spares < kMaxSpare) {
    spare[spares++] = entry;
  } else {
    PyObject_Free(self);
  }
}

bool is_range(const TaskEntry& entry) { return entry.span == nullptr; }

// Event id of the outermost range around the newest one on the stack, 0 if there is none.
uint64_t root_by_place(const ThreadBuffer& buffer) {
  for (uint32_t index = buffer.depth; index-- > buffer.floor;) {
    const OpenEntry& entry = buffer.stack[index];
    if (entry.ordinal != 0 && entry.base) return make_event_id(buffer.number, entry.ordinal);
  }
  return 0;
}

// Whether the parent of the thread's newest range is what the last look found, and not a range on the stack.
bool begun_by_context(const ThreadBuffer& buffer) { return buffer.stack[buffer.depth - 1].base; }

void place_entry(TaskEntry& entry, const ThreadBuffer& buffer, const TaskEntry* around) {
  entry.context = buffer.context;
  entry.root = entry.event_id;
  if (begun_by_context(buffer)) {
    if (buffer.context.enclosing != 0) entry.root = buffer.context.root;
  } else if (around != nullptr && is_range(*around)) {
    entry.context = around->context, entry.root = around->root;
  } else {
    entry.root = root_by_place(buffer);
  }
  entry.context.enclosing = entry.event_id, entry.context.root = entry.root;
}

constexpr uint32_t kShortenEvery = 64, kMostSpans = 64;

// Leaves out what is over, and of the spans all but the newest: tasks that launch tasks inherit chains, and programs attach
// without ever detaching. Returns how long the chain is then.
uint32_t shorten(TaskEntry* entry) {
  const uint64_t recording = recording_now();
  uint32_t length = 1, spans = 0;
  for (;; ++length) {
    TaskEntry* outer = living(entry->outer, recording);
    while (outer != nullptr && !is_range(*outer) && ++spans > kMostSpans) outer = living(outer->outer, recording);
    set_outer(*entry, outer);
    if (outer == nullptr) return length;
    entry = outer;
  }
}

TaskEntry* new_range_entry(const ThreadBuffer& buffer, uint64_t event_id, uint32_t scope, uint32_t source, const TaskEntry* around) {
  TaskEntry* entry = new_entry();
  if (entry == nullptr) return nullptr;
  entry->event_id = event_id;
  entry->recording = recording_now();
  entry->scope = static_cast<uint8_t>(scope), entry->source = static_cast<uint8_t>(source);
  entry->since_thread = buffer.number, entry->since_ordinal = event_id & kOrdinalMask;
  place_entry(*entry, buffer, around);
  return entry;
}

// From here on the calling task is in it; `outer` is its innermost entry.
void push(TaskEntry* entry, TaskEntry* outer) {
  set_outer(*entry, outer);
  entry->length = outer != nullptr ? outer->length + 1 : 1;
  if (entry->length % kShortenEvery == 0) entry->length = shorten(entry);
  set_value_in_task(entry);
}

// The range is over, in every task that has it. It stays where it is, and is passed over: taking it out would cost as much again
// as putting it in.
void end_range_entry(TaskEntry& entry) {
  entry.ended = true;
  Py_CLEAR(entry.shown);
}

// The calling task has detached that span.
void pop_span(TaskEntry* entry) {
  if (innermost() == entry) set_value_in_task(living(entry->outer, recording_now()));
}

// EventFlag bits that are known when the range ends.
uint32_t end_flags_of(const TaskEntry& range) { return range.shown != nullptr && range.shown != Py_None ? uint32_t{kShown} : 0; }

using OpenRanges = std::unordered_map<uint64_t, TaskEntry*>;

// Of ranges that are begun and ended by their ids.
OpenRanges& open_ranges() {
  static auto* instance = new OpenRanges;
  return *instance;
}

}  // namespace

TaskEntry* enter_range(const ThreadBuffer& buffer, uint64_t event_id, uint32_t scope, uint32_t source) {
  TaskEntry* outer = innermost();
  TaskEntry* entry = new_range_entry(buffer, event_id, scope, source, outer);
  if (entry != nullptr) push(entry, outer);
  return entry;
}

uint32_t leave_range(TaskEntry* entry) {
  if (entry == nullptr) return 0;
  const uint32_t flags = end_flags_of(*entry);
  end_range_entry(*entry);
  Py_DECREF(reinterpret_cast<PyObject*>(entry));
  return flags;
}

void view_task(TaskView& view, PyObject* span) {
  if (PyThreadState_Get()->context == nullptr) {  // no context yet: setting a value makes one
    set_value_in_task(nullptr);
  }
  view.task_count = entered_contexts(view.tasks, kMaxTasks);
  TaskEntry* latest = innermost();
  while (latest != nullptr && !is_range(*latest) && latest->span != span) latest = living(latest->outer, recording_now());
  if (latest == nullptr) return;
  view.has_latest = true;
  view.since_thread = latest->since_thread, view.since_ordinal = latest->since_ordinal;
  if (!is_range(*latest)) return;
  view.range = latest->event_id;
  view.range_context = latest->context;
}

namespace {

TaskEntry* as_entry(PyObject* object) {
  if (Py_TYPE(object) == &TaskEntryType) return reinterpret_cast<TaskEntry*>(object);
  PyErr_Format(PyExc_TypeError, "this takes what enter returned, not %s", Py_TYPE(object)->tp_name);
  return nullptr;
}

// A thread that recorded nothing has no cached context to renew.
void context_has_changed() {
  if (ThreadBuffer* buffer = registry().existing()) buffer->context_stale = true;
}

void since_now(TaskEntry& entry) {
  entry.since_thread = registry().thread_number();
  if (const ThreadBuffer* buffer = registry().existing()) entry.since_ordinal = buffer->ordinal.load(std::memory_order_relaxed);
}

// The task's entry of that range that it left, alive again below what it began there and has not ended; null if there is none.
TaskEntry* reenter(const TaskEntry& range) {
  TaskEntry* entry = innermost();
  while (entry != nullptr && entry->serial > range.serial && entry->range != &range) entry = entry->outer;
  if (entry == nullptr || entry->range != &range || !entry->ended) return nullptr;
  entry->ended = false;
  since_now(*entry);
  context_has_changed();
  return entry;
}

PyObject* enter(PyObject*, PyObject* argument) {
  const uint64_t event_id = PyLong_AsUnsignedLongLong(argument);
  if (PyErr_Occurred() != nullptr) return nullptr;
  const auto found = open_ranges().find(event_id);
  const TaskEntry* newest = innermost();
  if (found == open_ranges().end()) Py_RETURN_NONE;
  TaskEntry* own = found->second;
  if (newest != nullptr && newest->serial > own->serial) {
    TaskEntry* again = reenter(*own);
    return Py_NewRef(again != nullptr ? reinterpret_cast<PyObject*>(again) : Py_None);
  }
  TaskEntry* entry = new_entry();
  if (entry == nullptr) return PyErr_NoMemory();
  entry->event_id = own->event_id, entry->root = own->root, entry->recording = own->recording, entry->context = own->context;
  entry->scope = own->scope, entry->source = own->source;
  since_now(*entry);
  Py_INCREF(own);
  entry->range = own;
  push(entry, innermost());
  context_has_changed();
  return reinterpret_cast<PyObject*>(entry);
}

PyObject* leave(PyObject*, PyObject* argument) {
  TaskEntry* entry = as_entry(argument);
  if (entry == nullptr) return nullptr;
  end_range_entry(*entry);
  context_has_changed();
  Py_RETURN_NONE;
}

PyObject* is_in(PyObject*, PyObject* argument) {
  const TaskEntry* wanted = as_entry(argument);
  if (wanted == nullptr) return nullptr;
  const TaskEntry* entry = innermost();
  while (entry != nullptr && entry != wanted) entry = living(entry->outer, recording_now());
  return PyBool_FromLong(entry != nullptr);
}

PyObject* ranges_after(PyObject*, PyObject* span) {
  PyObject* found = PyList_New(0);
  for (TaskEntry* entry = innermost(); found != nullptr && entry != nullptr; entry = living(entry->outer, recording_now())) {
    if (!is_range(*entry) && entry->span == span) break;
    if (is_range(*entry) && PyList_Append(found, reinterpret_cast<PyObject*>(entry)) < 0) Py_CLEAR(found);
  }
  PyObject* tuple = found != nullptr ? PyList_AsTuple(found) : nullptr;
  Py_XDECREF(found);
  return tuple;
}

PyObject* span_attached(PyObject*, PyObject* args) {
  PyObject *span, *token;
  if (!PyArg_ParseTuple(args, "OO", &span, &token)) return nullptr;
  TaskEntry* entry = new_entry();
  if (entry == nullptr) return PyErr_NoMemory();
  entry->span = Py_NewRef(span);
  entry->token = reinterpret_cast<uint64_t>(token);
  since_now(*entry);
  push(entry, innermost());
  Py_DECREF(entry);
  context_has_changed();
  Py_RETURN_NONE;
}

// The newest entry of the task that was attached with that token; null where there is none.
TaskEntry* find_attached(PyObject* token) {
  TaskEntry* entry = innermost();
  while (entry != nullptr && entry->token != reinterpret_cast<uint64_t>(token)) entry = living(entry->outer, recording_now());
  return entry;
}

PyObject* context_attached(PyObject*, PyObject* token) {
  if (TaskEntry* gone = find_attached(token)) gone->token = 0;  // that entry's token was freed: the new token has the same address
  context_has_changed();
  Py_RETURN_NONE;
}

PyObject* span_detached(PyObject*, PyObject* token) {
  TaskEntry* entry = find_attached(token);
  if (entry != nullptr) pop_span(entry);
  context_has_changed();
  Py_RETURN_NONE;
}

PyObject* task_serial(PyObject*, PyObject*) { return PyLong_FromUnsignedLongLong(++last_serial); }

PyObject* outer_contexts_known(PyObject*, PyObject*) { return PyBool_FromLong(knows_outer_contexts()); }

PyObject* context_of(PyObject* self, void*) {
  const Context& context = reinterpret_cast<TaskEntry*>(self)->context;
  return Py_BuildValue("(KKKK)", static_cast<unsigned long long>(context.trace_high), static_cast<unsigned long long>(context.trace_low),
                       static_cast<unsigned long long>(context.span_id), static_cast<unsigned long long>(context.flags));
}

PyObject* is_current(PyObject* self, void*) {
  return PyBool_FromLong(reinterpret_cast<TaskEntry*>(self)->recording == recording_now());
}

PyMemberDef members[] = {{"event_id", T_ULONGLONG, offsetof(TaskEntry, event_id), READONLY, "Of its row."},
                         {"root", T_ULONGLONG, offsetof(TaskEntry, root), READONLY, "Event id of its outermost range."},
                         {"scope", T_UBYTE, offsetof(TaskEntry, scope), READONLY, "RecordScope"},
                         {"source", T_UBYTE, offsetof(TaskEntry, source), READONLY, "EventSource"},
                         {"serial", T_ULONGLONG, offsetof(TaskEntry, serial), READONLY, "Larger than those before it."},
                         {nullptr, 0, 0, 0, nullptr}};

PyObject*& shown_slot(PyObject* self) {
  auto* entry = reinterpret_cast<TaskEntry*>(self);
  return (entry->range != nullptr ? entry->range : entry)->shown;
}

PyObject* get_shown(PyObject* self, void*) {
  PyObject* shown = shown_slot(self);
  return Py_NewRef(shown != nullptr ? shown : Py_None);
}

// Does nothing once the range is over: what is shown refers to the entry, and nothing would free the two any more.
int set_shown(PyObject* self, PyObject* value, void*) {
  auto* entry = reinterpret_cast<TaskEntry*>(self);
  if (entry->ended || (entry->range != nullptr && entry->range->ended)) return 0;
  Py_XINCREF(value);
  Py_XSETREF(shown_slot(self), value);
  return 0;
}

PyGetSetDef properties[] = {
    {"shown", get_shown, set_shown, "For whoever shows the range as a span; of the range, however often it is entered.", nullptr},
    {"context_words", context_of, nullptr, "(trace id high, low, span id, flags) where its outermost range began", nullptr},
    {"is_current", is_current, nullptr, "Whether it belongs to the recording that is on, or was the last.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyTypeObject entry_type() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "otel_recfn._native.TaskEntry";
  type.tp_basicsize = sizeof(TaskEntry);
  type.tp_dealloc = dealloc;
  type.tp_flags = Py_TPFLAGS_DEFAULT;
  type.tp_doc = "See recording/protocol.py: TaskRange.";
  type.tp_members = members;
  type.tp_getset = properties;
  return type;
}

PyTypeObject TaskEntryType = entry_type();

PyMethodDef functions[] = {
    {"enter", enter, METH_O, "enter(event_id) -> TaskEntry | None"},
    {"leave", leave, METH_O, "leave(entry)"},
    {"is_in", is_in, METH_O, "is_in(entry) -> bool"},
    {"ranges_after", ranges_after, METH_O, "ranges_after(span) -> tuple of TaskEntry"},
    {"span_attached", span_attached, METH_VARARGS, "span_attached(span, token)"},
    {"context_attached", context_attached, METH_O, "context_attached(token)"},
    {"span_detached", span_detached, METH_O, "span_detached(token)"},
    {"task_serial", task_serial, METH_NOARGS, "task_serial() -> larger than that of every entry"},
    {"knows_outer_contexts", outer_contexts_known, METH_NOARGS, "Whether contexts around the current one are seen."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

void keep_open_range(const ThreadBuffer& buffer, uint64_t event_id, uint32_t scope, uint32_t source, bool enters) try {
  TaskEntry*& kept = open_ranges()[event_id];
  TaskEntry* outer = innermost();
  kept = new_range_entry(buffer, event_id, scope, source, outer);
  if (kept == nullptr) {
    open_ranges().erase(event_id);
  } else if (enters) {
    push(kept, outer);
  }
} catch (const std::bad_alloc&) {  // without memory the range has no entry: what begins in it gets the range around it as its parent
}

uint32_t forget_open_range(uint64_t event_id) {
  const auto found = open_ranges().find(event_id);
  if (found == open_ranges().end()) return 0;
  TaskEntry* entry = found->second;
  open_ranges().erase(found);
  return leave_range(entry);
}

void forget_open_ranges() {
  OpenRanges forgotten;
  forgotten.swap(open_ranges());
  for (auto& [event_id, entry] : forgotten) Py_DECREF(entry);
}

int add_task_entries(PyObject* module) {
  innermost_var = PyContextVar_New("otel_recfn_task", nullptr);
  if (innermost_var == nullptr || PyType_Ready(&TaskEntryType) < 0) return -1;
  find_outer_context_offset();
  return PyModule_AddFunctions(module, functions);
}

}  // namespace recfn
