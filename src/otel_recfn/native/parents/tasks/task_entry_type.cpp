// What Python has of a task's entries: the type, and the functions that enter and leave ranges and
// tell of spans.
#include <structmember.h>

#include <cstddef>
#include <utility>

#include "core/registry.hpp"
#include "cpython/context_variables.hpp"
#include "cpython/python.hpp"
#include "parents/tasks/attached_spans.hpp"
#include "parents/tasks/current_spans.hpp"
#include "parents/tasks/propagation.hpp"
#include "parents/tasks/task_contexts.hpp"
#include "parents/tasks/task_entries.hpp"
#include "recording/begin_end.hpp"

namespace recfn {
namespace {

TaskEntry* as_entry(PyObject* object) {
  if (Py_TYPE(object) == &TaskEntryType) return reinterpret_cast<TaskEntry*>(object);
  PyErr_Format(PyExc_TypeError, "this takes what enter returned, not %s", Py_TYPE(object)->tp_name);
  return nullptr;
}

// The task's entry of that range that it left, alive again below what it began there and has not
// ended; null if there is none.
TaskEntry* reenter(const TaskEntry& range) {
  TaskEntry* entry = innermost();
  while (entry != nullptr && entry->serial > range.serial && entry->range != &range) {
    entry = entry->outer;
  }
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
  entry->event_id = own->event_id;
  entry->epoch = own->epoch;
  entry->copy_parent_from(*own);
  entry->has_context = true;
  entry->scope = own->scope;
  entry->source = own->source;
  entry->name = Py_XNewRef(own->name);
  entry->flags = own->flags;
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
  end_range_entry(registry().existing(), *entry);
  context_has_changed();
  Py_RETURN_NONE;
}

PyObject* is_in(PyObject*, PyObject* argument) {
  const TaskEntry* wanted = as_entry(argument);
  if (wanted == nullptr) return nullptr;
  const TaskEntry* entry = innermost();
  while (entry != nullptr && entry != wanted) entry = living(entry->outer);
  return PyBool_FromLong(entry != nullptr);
}

PyObject* ranges_after(PyObject*, PyObject* span) {
  PyObject* found = PyList_New(0);
  for (TaskEntry* entry = innermost(); found != nullptr && entry != nullptr;
       entry = living(entry->outer)) {
    if (!is_range(*entry) && entry->span == span) break;
    if (is_range(*entry) && PyList_Append(found, reinterpret_cast<PyObject*>(entry)) < 0) {
      Py_CLEAR(found);
    }
  }
  PyObject* tuple = found != nullptr ? PyList_AsTuple(found) : nullptr;
  Py_XDECREF(found);
  return tuple;
}

PyObject* span_attached(PyObject*, PyObject* args) {
  PyObject *span, *token;
  if (!PyArg_ParseTuple(args, "OO", &span, &token)) return nullptr;
  if (!push_span(span, token)) return PyErr_NoMemory();
  context_has_changed();
  Py_RETURN_NONE;
}

PyObject* context_attached(PyObject*, PyObject* token) {
  note_token(token);
  context_has_changed();
  Py_RETURN_NONE;
}

PyObject* span_detached(PyObject*, PyObject* token) {
  pop_attached(token);
  context_has_changed();
  Py_RETURN_NONE;
}

PyObject* expose_step(PyObject*, PyObject* args) {
  PyObject *span, *attached, *exposed;
  if (!PyArg_ParseTuple(args, "OOO", &span, &attached, &exposed)) return nullptr;
  Reference pushed = push_span(span, nullptr);
  if (!pushed) return PyErr_NoMemory();
  auto* entry = reinterpret_cast<TaskEntry*>(pushed.get());
  entry->attached = Py_NewRef(attached);
  entry->exposed = Py_NewRef(exposed);
  current_spans.add(span);
  context_has_changed();
  return pushed.release();
}

PyObject* end_step(PyObject*, PyObject* argument) {
  TaskEntry* entry = as_entry(argument);
  if (entry == nullptr) return nullptr;
  pop_span(entry);
  entry->ended = true;
  expose_nothing(*entry);
  context_has_changed();
  Py_RETURN_NONE;
}

PyObject* current_in_step(PyObject*, PyObject* attached) {
  return Py_NewRef(context_in_step(attached, innermost()));
}

// The calling thread is about to launch work: what it propagates is up to date afterwards.
PyObject* before_launch(PyObject*, PyObject* launcher) {
  const uint32_t recording = globals().recording.load(std::memory_order_acquire);
  ThreadBuffer* buffer = (recording & kRecordingBit) != 0 ? registry().current() : nullptr;
  if (buffer != nullptr && catch_up(globals(), *buffer, kMayRefresh)) {
    propagate_pending(globals(), *buffer);
    refresh_context_if_changed(globals(), *buffer);
    propagate_torch_range(*buffer);
  }
  return PyObject_GetAttrString(launcher, "launches");
}

// The span that was current where the thread's work was launched, or that became current there
// since; None in other threads.
PyObject* launching_span(PyObject*, PyObject*) {
  if (propagated_to(registry().existing()) == nullptr) Py_RETURN_NONE;
  const TaskEntry* entry = innermost();
  while (entry != nullptr && is_range(*entry)) entry = living(entry->outer);
  return Py_NewRef(entry != nullptr ? entry->span : Py_None);
}

PyObject* set_context_variable(PyObject*, PyObject* args) {
  PyObject* variable;
  PyObject* value;
  if (!PyArg_ParseTuple(args, "OO", &variable, &value)) return nullptr;
  const Reference token(set_variable(variable, value));
  return token ? Py_NewRef(Py_None) : nullptr;
}

PyObject* task_serial(PyObject*, PyObject*) { return PyLong_FromUnsignedLongLong(next_serial()); }

PyObject* began(PyObject* self, void*) {
  const auto* entry = reinterpret_cast<TaskEntry*>(self);
  return PyLong_FromUnsignedLongLong((entry->range != nullptr ? entry->range : entry)->serial);
}

PyObject* is_current(PyObject* self, void*) {
  return PyBool_FromLong(reinterpret_cast<TaskEntry*>(self)->epoch == current_epoch());
}

constexpr Py_ssize_t context_offset(size_t member) {
  return static_cast<Py_ssize_t>(offsetof(TaskEntry, context) + member);
}

PyMemberDef entry_members[] = {
    {"event_id", T_ULONGLONG, offsetof(TaskEntry, event_id), READONLY, "Of its row."},
    {"root", T_ULONGLONG, offsetof(TaskEntry, root), READONLY, "Event id of its outermost range."},
    {"root_without_calls", T_ULONGLONG, offsetof(TaskEntry, root_without_calls), READONLY,
     "Event id of the outermost one that is no Python call."},
    {"trace_high", T_ULONGLONG, context_offset(offsetof(Context, trace_high)), READONLY,
     "Upper half of the trace id where its outermost range began."},
    {"trace_low", T_ULONGLONG, context_offset(offsetof(Context, trace_low)), READONLY,
     "Lower half of it."},
    {"span_id", T_ULONGLONG, context_offset(offsetof(Context, span_id)), READONLY,
     "Id of the span that was current there."},
    {"context_flags", T_ULONGLONG, context_offset(offsetof(Context, flags)), READONLY,
     "Flags of that reading of the context."},
    {"scope", T_UBYTE, offsetof(TaskEntry, scope), READONLY, "RecordScope"},
    {"source", T_UBYTE, offsetof(TaskEntry, source), READONLY, "EventSource"},
    {"name", T_OBJECT, offsetof(TaskEntry, name), READONLY,
     "Of a module's call or a step; else None."},
    {"flags", T_UINT, offsetof(TaskEntry, flags), READONLY,
     "EventFlag, of a range that has a name."},
    {"outer", T_OBJECT, offsetof(TaskEntry, outer), READONLY,
     "What was entered before, also if over."},
    {nullptr, 0, 0, 0, nullptr}};

PyObject* get_exposed(PyObject* self, void*) {
  const TaskEntry& range = own_entry(*reinterpret_cast<TaskEntry*>(self));
  if (range.attached == nullptr) Py_RETURN_NONE;
  return Py_BuildValue("(OO)", range.attached, range.exposed);
}

// Does nothing once the range is over: what is shown refers to the entry, and nothing would free
// the two any more.
PyObject* expose(PyObject* self, PyObject* args) {
  unsigned long long by;
  PyObject *attached, *exposed;
  if (!PyArg_ParseTuple(args, "KOO", &by, &attached, &exposed)) return nullptr;
  auto* entry = reinterpret_cast<TaskEntry*>(self);
  TaskEntry& range = own_entry(*entry);
  if (entry->ended || range.ended) Py_RETURN_FALSE;
  range.exposed_by = by;
  range.was_exposed = range.was_exposed || exposed != attached;
  // Both are set before either of the earlier ones is freed, which may run Python that asks.
  const Reference attached_before(std::exchange(range.attached, Py_NewRef(attached)));
  const Reference exposed_before(std::exchange(range.exposed, Py_NewRef(exposed)));
  Py_RETURN_TRUE;
}

PyObject* hide(PyObject* self, PyObject* by) {
  const uint64_t number = PyLong_AsUnsignedLongLong(by);
  if (PyErr_Occurred() != nullptr) return nullptr;
  TaskEntry& range = own_entry(*reinterpret_cast<TaskEntry*>(self));
  range.exposed_by = number;
  const Reference attached(std::exchange(range.attached, nullptr));
  const Reference exposed(std::exchange(range.exposed, nullptr));
  Py_RETURN_NONE;
}

PyMethodDef entry_methods[] = {
    {"expose", expose, METH_VARARGS, "expose(by, attached, exposed) -> whether it is open"},
    {"hide", hide, METH_O, "hide(by)"},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef entry_properties[] = {
    {"exposed", get_exposed, nullptr, "(attached, exposed), two contexts, or None", nullptr},
    {"began", began, nullptr,
     "Larger than those of ranges that began before, however often it is entered.", nullptr},
    {"is_current", is_current, nullptr,
     "Whether it belongs to the recording that is on, or was the last.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyTypeObject entry_type() {
  PyTypeObject type = type_of_size("otel_recfn._native.TaskEntry", sizeof(TaskEntry));
  type.tp_dealloc = free_entry;
  type.tp_doc = "A range that a task is in.";
  type.tp_methods = entry_methods;
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
    {"expose_step", expose_step, METH_VARARGS, "expose_step(span, attached, exposed) -> TaskEntry"},
    {"end_step", end_step, METH_O, "end_step(entry)"},
    {"current_in_step", current_in_step, METH_O, "current_in_step(attached) -> context"},
    {"before_launch", before_launch, METH_O,
     "before_launch(launcher) -> launcher.launches, after a refresh"},
    {"launching_span", launching_span, METH_NOARGS, "launching_span() -> span | None"},
    {"set_context_variable", set_context_variable, METH_VARARGS,
     "set_context_variable(variable, value): also where a signal handler comes meanwhile that sets "
     "any"},
    {"task_serial", task_serial, METH_NOARGS, "task_serial() -> larger than that of every entry"},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

PyTypeObject TaskEntryType = entry_type();

int add_task_entries(PyObject* module) {
  if (!start_task_chain() || PyModule_AddType(module, &TaskEntryType) < 0) return -1;
  find_outer_context_offset();
  return PyModule_AddFunctions(module, entry_functions);
}

}  // namespace recfn
