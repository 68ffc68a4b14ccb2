// What Python has of a task's entries: the type, and the functions that enter and leave ranges and
// tell of spans.
#include "python/task_entries.hpp"

#include <structmember.h>

#include <cstddef>

#include "python/task_contexts.hpp"

namespace recfn {
namespace {

TaskEntry* as_entry(PyObject* object) {
  if (Py_TYPE(object) == &TaskEntryType) return reinterpret_cast<TaskEntry*>(object);
  PyErr_Format(PyExc_TypeError, "this takes what enter returned, not %s", Py_TYPE(object)->tp_name);
  return nullptr;
}

// A thread that recorded nothing has no cached context to renew.
void context_has_changed() {
  if (ThreadBuffer* buffer = registry().existing()) buffer->context_stale |= kContextStale;
}

void since_now(TaskEntry& entry) {
  entry.since_thread = registry().thread_number();
  if (const ThreadBuffer* buffer = registry().existing())
    entry.since_ordinal = buffer->ordinal.load(std::memory_order_relaxed);
}

// The task's entry of that range that it left, alive again below what it began there and has not
// ended; null if there is none.
TaskEntry* reenter(const TaskEntry& range) {
  TaskEntry* entry = innermost();
  while (entry != nullptr && entry->serial > range.serial && entry->range != &range)
    entry = entry->outer;
  if (entry == nullptr || entry->range != &range || !entry->ended) return nullptr;
  entry->ended = false;
  since_now(*entry);
  context_has_changed();
  return entry;
}

PyObject* enter(PyObject*, PyObject* argument) {
  const uint64_t event_id = PyLong_AsUnsignedLongLong(argument);
  if (PyErr_Occurred() != nullptr) return nullptr;
  TaskEntry* own = open_range(event_id);
  const TaskEntry* newest = innermost();
  if (own == nullptr) Py_RETURN_NONE;
  if (newest != nullptr && newest->serial > own->serial) {
    TaskEntry* again = reenter(*own);
    return Py_NewRef(again != nullptr ? reinterpret_cast<PyObject*>(again) : Py_None);
  }
  TaskEntry* entry = new_entry();
  if (entry == nullptr) return PyErr_NoMemory();
  entry->event_id = own->event_id, entry->root = own->root, entry->recording = own->recording,
  entry->context = own->context;
  entry->beside_calls = own->beside_calls;
  entry->scope = own->scope, entry->source = own->source, entry->placed = true;
  since_now(*entry);
  Py_INCREF(own);
  entry->range = own;
  push(registry().existing(), entry, innermost());
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
  for (TaskEntry* entry = innermost(); found != nullptr && entry != nullptr;
       entry = living(entry->outer, recording_now())) {
    if (!is_range(*entry) && entry->span == span) break;
    if (is_range(*entry) && PyList_Append(found, reinterpret_cast<PyObject*>(entry)) < 0)
      Py_CLEAR(found);
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
  push(registry().existing(), entry, innermost());
  Py_DECREF(entry);
  context_has_changed();
  Py_RETURN_NONE;
}

// The newest entry of the task that was attached with that token; null where there is none.
TaskEntry* find_attached(PyObject* token) {
  TaskEntry* entry = innermost();
  while (entry != nullptr && entry->token != reinterpret_cast<uint64_t>(token))
    entry = living(entry->outer, recording_now());
  return entry;
}

PyObject* context_attached(PyObject*, PyObject* token) {
  if (TaskEntry* gone = find_attached(token))
    gone->token = 0;  // that entry's token was freed: the new token has the same address
  context_has_changed();
  Py_RETURN_NONE;
}

PyObject* span_detached(PyObject*, PyObject* token) {
  TaskEntry* entry = find_attached(token);
  if (entry != nullptr) pop_span(entry);
  context_has_changed();
  Py_RETURN_NONE;
}

// The calling thread is about to launch work: what it hands on is up to date afterwards.
PyObject* before_launch(PyObject*, PyObject* launcher) {
  const uint32_t recording = globals().recording.load(std::memory_order_acquire);
  ThreadBuffer* buffer = (recording & kRecordingBit) != 0 ? registry().current() : nullptr;
  if (buffer != nullptr && catch_up(globals(), *buffer, kMayLook)) {
    hand_on_what_waits(globals(), *buffer);
    look_if_changed(globals(), *buffer);
    hand_on_torchs_range(*buffer);
  }
  return PyObject_GetAttrString(launcher, "launches");
}

// The span that was current where the thread's work was launched, or that became current there
// since; None in other threads.
PyObject* launching_span(PyObject*, PyObject*) {
  if (launch_of_another(registry().existing()) == nullptr) Py_RETURN_NONE;
  const TaskEntry* entry = innermost();
  while (entry != nullptr && is_range(*entry)) entry = living(entry->outer, recording_now());
  return Py_NewRef(entry != nullptr ? entry->span : Py_None);
}

PyObject* task_serial(PyObject*, PyObject*) { return PyLong_FromUnsignedLongLong(next_serial()); }

PyObject* context_of(PyObject* self, void*) {
  return context_words(reinterpret_cast<TaskEntry*>(self)->context);
}

PyObject* began(PyObject* self, void*) {
  const auto* entry = reinterpret_cast<TaskEntry*>(self);
  return PyLong_FromUnsignedLongLong((entry->range != nullptr ? entry->range : entry)->serial);
}

PyObject* is_current(PyObject* self, void*) {
  return PyBool_FromLong(reinterpret_cast<TaskEntry*>(self)->recording == recording_now());
}

PyMemberDef entry_members[] = {
    {"event_id", T_ULONGLONG, offsetof(TaskEntry, event_id), READONLY, "Of its row."},
    {"root", T_ULONGLONG, offsetof(TaskEntry, root), READONLY, "Event id of its outermost range."},
    {"beside_calls", T_ULONGLONG, offsetof(TaskEntry, beside_calls), READONLY,
     "Event id of the outermost one that is no Python call."},
    {"scope", T_UBYTE, offsetof(TaskEntry, scope), READONLY, "RecordScope"},
    {"source", T_UBYTE, offsetof(TaskEntry, source), READONLY, "EventSource"},
    {"outer", T_OBJECT, offsetof(TaskEntry, outer), READONLY,
     "What was entered before, also if over."},
    {nullptr, 0, 0, 0, nullptr}};

PyObject*& shown_slot(PyObject* self) {
  auto* entry = reinterpret_cast<TaskEntry*>(self);
  return (entry->range != nullptr ? entry->range : entry)->shown;
}

PyObject* get_shown(PyObject* self, void*) {
  PyObject* shown = shown_slot(self);
  return Py_NewRef(shown != nullptr ? shown : Py_None);
}

// Does nothing once the range is over: what is shown refers to the entry, and nothing would free
// the two any more.
int set_shown(PyObject* self, PyObject* value, void*) {
  auto* entry = reinterpret_cast<TaskEntry*>(self);
  if (entry->ended || (entry->range != nullptr && entry->range->ended)) return 0;
  Py_XINCREF(value);
  Py_XSETREF(shown_slot(self), value);
  return 0;
}

PyGetSetDef entry_properties[] = {
    {"shown", get_shown, set_shown,
     "For whoever shows the range as a span; of the range, however often it is entered.", nullptr},
    {"context_words", context_of, nullptr,
     "(trace id high, low, span id, flags) where its outermost range began", nullptr},
    {"began", began, nullptr,
     "Larger than those of ranges that began before, however often it is entered.", nullptr},
    {"is_current", is_current, nullptr,
     "Whether it belongs to the recording that is on, or was the last.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyTypeObject entry_type() {
  PyTypeObject type = type_of_size("otel_recfn._native.TaskEntry", sizeof(TaskEntry));
  type.tp_dealloc = free_entry;
  type.tp_doc = "A range that a task is in.";
  type.tp_members = entry_members;
  type.tp_getset = entry_properties;
  return type;
}

PyMethodDef entry_functions[] = {
    {"enter", enter, METH_O, "enter(event_id) -> TaskEntry | None"},
    {"leave", leave, METH_O, "leave(entry)"},
    {"is_in", is_in, METH_O, "is_in(entry) -> bool"},
    {"ranges_after", ranges_after, METH_O, "ranges_after(span) -> tuple of TaskEntry"},
    {"span_attached", span_attached, METH_VARARGS, "span_attached(span, token)"},
    {"context_attached", context_attached, METH_O, "context_attached(token)"},
    {"span_detached", span_detached, METH_O, "span_detached(token)"},
    {"before_launch", before_launch, METH_O,
     "before_launch(launcher) -> launcher.launches, after a look"},
    {"launching_span", launching_span, METH_NOARGS, "launching_span() -> span | None"},
    {"task_serial", task_serial, METH_NOARGS, "task_serial() -> larger than that of every entry"},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

PyTypeObject TaskEntryType = entry_type();

int add_task_entries(PyObject* module) {
  if (!start_task_chain() || PyType_Ready(&TaskEntryType) < 0) return -1;
  start_launches();
  find_outer_context_offset();
  return PyModule_AddFunctions(module, entry_functions);
}

}  // namespace recfn
