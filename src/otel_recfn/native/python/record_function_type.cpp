#include "python/record_function_type.hpp"
#include "python/python_stack.hpp"

#include <structmember.h>

#include <algorithm>
#include <iterator>
#include <new>
#include <vector>

#include "cpython/made.hpp"
#include "python/bound_method.hpp"
#include "python/range_observer.hpp"
#include "core/registry.hpp"
#include "python/task_entries.hpp"
#include "python/text.hpp"

namespace recfn {
namespace {

// The rarely used parts are written in Python (ranges/, support/error_text.py); the native recorder sets them once.
struct Helpers {
  PyObject *recorder = nullptr, *decorate = nullptr, *aenter = nullptr, *aexit = nullptr, *error_text = nullptr;
  PyObject* arguments = nullptr;
} helpers;

struct Entry {
  uint64_t event_id;
  uint64_t thread;
  PyObject* handle;  // the range observer's, owned; null where the recorder alone sees the range
  TaskEntry* in_task;  // owned; null where it is not recorded
};

void forget(const Entry& entry) {
  Py_XDECREF(entry.handle);
  Py_XDECREF(reinterpret_cast<PyObject*>(entry.in_task));
}

struct RecordFunctionObject {
  PyObject_HEAD
  BoundMethod enter, exit;
  PyObject* name;
  PyObject* args;
  PyObject* entered_async;        // ranges/async_range.py keeps here what __aexit__ needs
  uint32_t entered;               // how often it is entered and not left
  Entry newest;                   // of these
  std::vector<Entry>* earlier;    // the others: the object is entered again while open, or shared by threads
};

RecordFunctionObject* as_range(PyObject* self) { return reinterpret_cast<RecordFunctionObject*>(self); }

// Objects live for one `with` each: a few are kept for the next.
constexpr int kMaxSpare = 16;
PyObject* spare[kMaxSpare];
int spares = 0;

PyTypeObject range_type();
extern PyTypeObject RecordFunctionType;
PyObject* call_enter(PyObject* bound, PyObject* const* args, size_t count, PyObject* keywords);
PyObject* call_exit(PyObject* bound, PyObject* const* args, size_t count, PyObject* keywords);

// The arguments of a call that is not the usual one, as a tuple; ranges/signatures.py says what they may be.
[[gnu::noinline]] PyObject* arguments_of(const char* method, PyObject* positional, PyObject* keywords) {
  return PyObject_CallFunction(helpers.arguments, "sOO", method, positional, keywords != nullptr ? keywords : Py_None);
}

PyObject* to_dict(PyObject* names, PyObject* const* values) {
  PyObject* dict = PyDict_New();
  for (Py_ssize_t at = 0; dict != nullptr && at < PyTuple_GET_SIZE(names); ++at) {
    if (PyDict_SetItem(dict, PyTuple_GET_ITEM(names, at), values[at]) < 0) Py_CLEAR(dict);
  }
  return dict;
}

// The same of a vectorcall.
[[gnu::noinline]] PyObject* arguments_of(const char* method, PyObject* const* args, size_t count, PyObject* keywords) {
  const Py_ssize_t size = PyVectorcall_NARGS(count);
  const Made positional(PyTuple_New(size));
  if (positional.object == nullptr) return nullptr;
  for (Py_ssize_t at = 0; at < size; ++at) PyTuple_SET_ITEM(positional.object, at, Py_NewRef(args[at]));
  if (keywords == nullptr) return arguments_of(method, positional.object, nullptr);
  const Made named(to_dict(keywords, args + size));
  return named.object != nullptr ? arguments_of(method, positional.object, named.object) : nullptr;
}

// `name` is a str, `args` one or None.
PyObject* make(PyObject* name, PyObject* args) {
  PyObject* self;
  if (spares > 0) {
    self = spare[--spares];
    PyObject_Init(self, &RecordFunctionType);
  } else {
    self = RecordFunctionType.tp_alloc(&RecordFunctionType, 0);
    if (self == nullptr) return nullptr;
  }
  RecordFunctionObject* range = as_range(self);
  init_bound_method(range->enter, call_enter, self);
  init_bound_method(range->exit, call_exit, self);
  range->name = Py_NewRef(name);
  range->args = Py_NewRef(args);
  range->entered_async = nullptr;
  range->entered = 0;
  range->newest = {};
  range->earlier = nullptr;
  return self;
}

PyObject* make_from(PyObject* arguments) {
  const Made checked(arguments);
  return arguments != nullptr ? make(PyTuple_GET_ITEM(arguments, 0), PyTuple_GET_ITEM(arguments, 1)) : nullptr;
}

PyObject* range_new(PyTypeObject*, PyObject* args, PyObject* keywords) { return make_from(arguments_of("__init__", args, keywords)); }

PyObject* range_vectorcall(PyObject*, PyObject* const* args, size_t count, PyObject* keywords) {
  if (keywords == nullptr && PyVectorcall_NARGS(count) == 1 && PyUnicode_Check(args[0])) return make(args[0], Py_None);
  return make_from(arguments_of("__init__", args, count, keywords));
}

void range_dealloc(PyObject* self) {
  RecordFunctionObject* range = as_range(self);
  Py_DECREF(range->name);
  Py_DECREF(range->args);
  Py_XDECREF(range->entered_async);
  if (range->entered > 0) forget(range->newest);
  if (range->earlier != nullptr) {
    for (const Entry& entry : *range->earlier) forget(entry);
    delete range->earlier;
  }
  if (spares < kMaxSpare) {
    spare[spares++] = self;
  } else {
    Py_TYPE(self)->tp_free(self);
  }
}

Entry begin_named(PyObject* name, const RareExtras* rare) {
  Globals& shared = globals();
  ThreadBuffer* buffer = registry().current();
  if (buffer == nullptr) return shared.dropped_without_buffer.fetch_add(1, std::memory_order_relaxed), Entry{};
  const Utf8 text(name, kMaxNameBytes);
  Begin range;
  range.name = text.text();
  range.scope = kUserScope;
  range.flags = kRecordFunctionSource << kSourceShift;
  range.extras.rare = rare;
  Entry entry{begin_range<false>(shared, *buffer, range, true), 0, nullptr, nullptr};
  if (entry.event_id != 0) entry.in_task = enter_range(*buffer, entry.event_id, kUserScope, kRecordFunctionSource);
  return entry;
}

[[gnu::noinline]] Entry begin_with_stack(PyObject* name) {
  char stack[kMaxStackBytes];
  RareExtras rare;
  rare.stack = {stack, python_stack(stack, sizeof stack)};
  return begin_named(name, &rare);
}

Entry begin_recorded(PyObject* name, uint32_t recording) {
  if (__builtin_expect((recording & kStackBit) != 0, 0)) return begin_with_stack(name);
  return begin_named(name, nullptr);
}

uint64_t this_thread() { return PyThread_get_thread_ident(); }

[[gnu::noinline]] bool keep_earlier(RecordFunctionObject& range) {
  if (range.earlier == nullptr) range.earlier = new (std::nothrow) std::vector<Entry>;
  if (range.earlier == nullptr) return PyErr_NoMemory(), false;
  range.earlier->push_back(range.newest);
  return true;
}

bool push_entry(RecordFunctionObject& range, const Entry& entry) {
  if (range.entered > 0 && !keep_earlier(range)) return false;
  ++range.entered;
  range.newest = entry;
  return true;
}

[[gnu::noinline]] PyObject* enter_observed(PyObject* self) {
  RecordFunctionObject* range = as_range(self);
  PyObject* handle = observe_range(range->name, range->args);
  if (handle == nullptr) return nullptr;
  if (!push_entry(*range, {0, this_thread(), handle, nullptr})) return Py_DECREF(handle), nullptr;
  return Py_NewRef(self);
}

PyObject* range_enter(PyObject* self, PyObject*) {
  const uint32_t recording = globals().recording.load(std::memory_order_acquire);
  if (__builtin_expect((recording & kObservedBit) != 0, 0) && !begins_unobserved()) return enter_observed(self);
  Entry entry = selects(recording, kUserScope) ? begin_recorded(as_range(self)->name, recording) : Entry{};
  entry.thread = this_thread();
  if (!push_entry(*as_range(self), entry)) return forget(entry), nullptr;
  return Py_NewRef(self);
}

// The newest entry of this thread; where it has none, the newest of all: a range may be left on another thread.
Entry take_entry(RecordFunctionObject& range) {
  Entry taken = range.newest;
  if (--range.entered == 0) return taken;
  std::vector<Entry>& earlier = *range.earlier;
  const uint64_t thread = this_thread();
  const auto mine = std::find_if(earlier.rbegin(), earlier.rend(), [thread](const Entry& entry) { return entry.thread == thread; });
  if (taken.thread != thread && mine != earlier.rend()) {
    taken = *mine;
    earlier.erase(std::next(mine).base());
  } else {
    range.newest = earlier.back();
    earlier.pop_back();
  }
  return taken;
}

// Calls `end` with the exception's text. False, with the error set, when the program was interrupted meanwhile
// (KeyboardInterrupt); the range ends all the same.
template <typename End>
[[gnu::noinline]] bool end_with_error(PyObject* exception, End end) {
  PyObject* message = helpers.error_text != nullptr ? PyObject_CallOneArg(helpers.error_text, exception) : nullptr;
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  if (message == nullptr || !PyUnicode_Check(message)) {
    Py_XSETREF(message, PyUnicode_FromString(Py_TYPE(exception)->tp_name));
  }
  const bool ended = end(message);
  Py_XDECREF(message);
  if (!ended) return Py_XDECREF(type), Py_XDECREF(value), Py_XDECREF(traceback), false;
  PyErr_Restore(type, value, traceback);
  if (type != nullptr && PyErr_ExceptionMatches(PyExc_Exception)) PyErr_Clear();
  return PyErr_Occurred() == nullptr;
}

bool call_end(PyObject* handle, PyObject* message) {
  PyObject* result = message != nullptr ? PyObject_CallMethod(handle, "end", "O", message) : PyObject_CallMethod(handle, "end", nullptr);
  Py_XDECREF(result);
  return result != nullptr;
}

[[gnu::noinline]] PyObject* exit_observed(PyObject* handle, PyObject* exception) {
  const bool ended = exception == nullptr ? call_end(handle, nullptr)
                                          : end_with_error(exception, [handle](PyObject* text) { return call_end(handle, text); });
  Py_DECREF(handle);
  return ended ? Py_NewRef(Py_None) : nullptr;
}

PyObject* range_exit(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  RecordFunctionObject* range = as_range(self);
  if (range->entered == 0) Py_RETURN_NONE;
  const Entry entry = take_entry(*range);
  PyObject* exception = count > 1 && args[1] != Py_None ? args[1] : nullptr;
  if (__builtin_expect(entry.handle != nullptr, 0)) return exit_observed(entry.handle, exception);
  const uint32_t shown = leave_range(entry.in_task);
  ThreadBuffer* buffer = entry.event_id != 0 ? registry().current() : nullptr;
  if (buffer == nullptr) Py_RETURN_NONE;
  if (exception == nullptr) {
    end_range(globals(), *buffer, entry.event_id, 0, shown, {});
    Py_RETURN_NONE;
  }
  const bool ended = end_with_error(exception, [buffer, &entry, shown](PyObject* message) {
    const Utf8 text(message, kMaxErrorBytes);
    const uint32_t flags = shown | (PyUnicode_GET_LENGTH(message) > 0 ? uint32_t{kError} : 0);
    end_range(globals(), *buffer, entry.event_id, 0, flags, text.text());
    return true;
  });
  return ended ? Py_NewRef(Py_None) : nullptr;
}

PyObject* call_enter(PyObject* bound, PyObject* const* args, size_t count, PyObject* keywords) {
  if (__builtin_expect(PyVectorcall_NARGS(count) != 0 || keywords != nullptr, 0)) {
    const Made none(arguments_of("__enter__", args, count, keywords));
    if (none.object == nullptr) return nullptr;
  }
  return range_enter(owner_of(bound), nullptr);
}

PyObject* call_exit(PyObject* bound, PyObject* const* args, size_t count, PyObject* keywords) {
  if (__builtin_expect(PyVectorcall_NARGS(count) == 3 && keywords == nullptr, 1)) return range_exit(owner_of(bound), args, 3);
  const Made given(arguments_of("__exit__", args, count, keywords));
  return given.object != nullptr ? range_exit(owner_of(bound), &PyTuple_GET_ITEM(given.object, 0), 3) : nullptr;
}

PyObject* range_call(PyObject* self, PyObject* args, PyObject* keywords) {
  const Made given(arguments_of("__call__", args, keywords));
  if (given.object == nullptr) return nullptr;
  PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(self));
  PyObject* function = PyTuple_GET_ITEM(given.object, 0);
  return PyObject_CallFunctionObjArgs(helpers.decorate, type, as_range(self)->name, as_range(self)->args, function, nullptr);
}

PyObject* range_aenter(PyObject* self, PyObject*) { return PyObject_CallOneArg(helpers.aenter, self); }

PyObject* range_aexit(PyObject* self, PyObject* args, PyObject* keywords) {
  const Made given(arguments_of("__aexit__", args, keywords));
  if (given.object == nullptr) return nullptr;
  PyObject* const* items = &PyTuple_GET_ITEM(given.object, 0);
  return PyObject_CallFunctionObjArgs(helpers.aexit, self, items[0], items[1], items[2], nullptr);
}

PyObject* range_repr(PyObject* self) {
  const RecordFunctionObject& range = *as_range(self);
  if (range.args == Py_None) return PyUnicode_FromFormat("record_function(%R)", range.name);
  return PyUnicode_FromFormat("record_function(%R, %R)", range.name, range.args);
}

PyObject* range_recorder(PyObject*, void*) { return Py_NewRef(helpers.recorder); }

PyGetSetDef properties[] = {{"_recorder", range_recorder, nullptr, nullptr, nullptr}, {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMethodDef methods[] = {
    {"__enter__", range_enter, METH_NOARGS, "Open the range in this thread."},
    {"__exit__", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(range_exit)), METH_FASTCALL, "Close it; an exception marks it."},
    {"__aenter__", range_aenter, METH_NOARGS, "Open the range in this task."},
    {"__aexit__", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(range_aexit)), METH_VARARGS | METH_KEYWORDS,
     "Close it; an exception marks it."},
    {nullptr, nullptr, 0, nullptr}};

PyMemberDef members[] = {
    {"name", T_OBJECT_EX, offsetof(RecordFunctionObject, name), READONLY, "The range's name."},
    {"args", T_OBJECT_EX, offsetof(RecordFunctionObject, args), READONLY, "The range's arguments, or None."},
    {"_entered", T_OBJECT, offsetof(RecordFunctionObject, entered_async), 0, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

constexpr const char* kDoc =
    "record_function(name, args=None)\n--\n\n"
    "A range: `with record_function(\"load batch\"):`, `async with`, or a decorator.\n\n"
    "Args:\n    name: the range's name, at most 2,048 bytes of UTF-8 (longer ones are cut).\n"
    "    args: as in torch.profiler.record_function; kept on the object for callbacks that need inputs.\n\n"
    "Raises:\n    TypeError: `name` is not a str, or `args` neither a str nor None.\n\nSource: torch.profiler.record_function.";

PyTypeObject range_type() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "otel_recfn.record_function";
  type.tp_basicsize = sizeof(RecordFunctionObject);
  type.tp_dealloc = range_dealloc;
  type.tp_repr = range_repr;
  type.tp_call = range_call;
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE;
  type.tp_doc = kDoc;
  type.tp_methods = methods;
  type.tp_members = members;
  type.tp_getset = properties;
  type.tp_new = range_new;
  type.tp_vectorcall = range_vectorcall;
  return type;
}

PyTypeObject RecordFunctionType = range_type();

PyObject* set_helpers(PyObject*, PyObject* args) {
  PyObject *recorder, *decorate, *aenter, *aexit, *error_text, *arguments;
  if (!PyArg_ParseTuple(args, "OOOOOO", &recorder, &decorate, &aenter, &aexit, &error_text, &arguments)) return nullptr;
  Py_XSETREF(helpers.recorder, Py_NewRef(recorder));
  Py_XSETREF(helpers.decorate, Py_NewRef(decorate));
  Py_XSETREF(helpers.aenter, Py_NewRef(aenter));
  Py_XSETREF(helpers.aexit, Py_NewRef(aexit));
  Py_XSETREF(helpers.error_text, Py_NewRef(error_text));
  Py_XSETREF(helpers.arguments, Py_NewRef(arguments));
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {{"set_record_function_helpers", set_helpers, METH_VARARGS,
                            "set_record_function_helpers(recorder, decorate, aenter, aexit, error_text, arguments)"},
                           {nullptr, nullptr, 0, nullptr}};

}  // namespace

int add_record_function_type(PyObject* module) {
  if (PyType_Ready(&RecordFunctionType) < 0 || PyModule_AddFunctions(module, functions) < 0) return -1;
  if (ready_bound_methods() < 0 ||
      embed_bound_method(RecordFunctionType, "__enter__", offsetof(RecordFunctionObject, enter)) < 0 ||
      embed_bound_method(RecordFunctionType, "__exit__", offsetof(RecordFunctionObject, exit)) < 0) {
    return -1;
  }
  Py_INCREF(&RecordFunctionType);
  return PyModule_AddObject(module, "record_function", reinterpret_cast<PyObject*>(&RecordFunctionType));
}

}  // namespace recfn
