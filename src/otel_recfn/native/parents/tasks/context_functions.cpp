// OpenTelemetry's `attach`, `detach` and `get_current`, while they are watched.
//
//     the program ─► ContextFunction ─► the original ─► what it returned ─► the program
//                                                            │
//                         attach       a span became current │ inside a range: an entry in the
//                         detach       it is no longer       │ task's chain
//                         get_current  what the program sees ┘ a step or range in its place
//
// A ContextFunction stands at OpenTelemetry's runtime context object, where every call ends,
// however the caller imported the functions: spans of other instrumentations and log lines call
// them all the time, mostly where no range of ours is near. So each returns at once where the task
// is in nothing:
//
//     attach       no entry in the chain, no range on the thread's stack. Every range that comes
//                  begins later than the span, so the span needs no entry; what the thread read
//                  last is stale
//     get_current  no entry in the chain: the context is the attached one
//
// Inside a range `get_current` compares what the range's entry keeps: the attached context, and the
// one that was made to be shown while that is attached. Python is asked where one of them is new,
// and in a thread that PyTorch launched.
//
// Where the original is OpenTelemetry's own, which only calls a method of a ContextVar, that is
// called in its place: one frame of Python less than without us. Through the originals
// `get_current` took 122 ns, for 86 without us, and `attach` with `detach` 438, for 343; now they
// take 62 and 303.
//
// After `active` is set to false a function only passes calls on: somebody may have wrapped it.
//
// Tests: tests/contract/test_context_functions.py; what a range lies in: see parents/parents.hpp.
#include <structmember.h>

#include <cstddef>
#include <string_view>
#include <utility>

#include "core/registry.hpp"
#include "cpython/calls_without_dynamo.hpp"
#include "cpython/context_variables.hpp"
#include "cpython/python.hpp"
#include "parents/tasks/attached_spans.hpp"
#include "parents/tasks/current_spans.hpp"
#include "parents/tasks/propagation.hpp"

namespace recfn {
namespace {

struct ContextFunction {
  PyObject_HEAD
  vectorcallfunc call;
  PyObject* original;
  PyObject* variable;  // the original only calls a method of this ContextVar; null: not so
  PyObject* see;       // get_current: (attached) -> what the program sees
  PyObject* dict;      // __name__, __doc__, __wrapped__
  PyObject* weak_references;
  uint64_t exposed_by;  // get_current: who exposes ranges, as their entries say; 0: nobody
  bool active;
};

ContextFunction& as_function(PyObject* self) { return *reinterpret_cast<ContextFunction*>(self); }

// Where OpenTelemetry keeps the current span.
struct SpanLookup {
  PyObject* key = nullptr;   // in a context, which is a dict; null where that isn't known
  PyObject* none = nullptr;  // stands for a span where there is none
  PyObject* find = nullptr;  // (context) -> span, OpenTelemetry's own
};
SpanLookup span_lookup;

// The current span in a context; without a span, or an answer, what stands for none.
Reference span_in(PyObject* context) {
  PyObject* span = nullptr;
  if (span_lookup.key != nullptr && PyDict_Check(context)) {
    span = Py_XNewRef(PyDict_GetItemWithError(context, span_lookup.key));
  } else if (span_lookup.find != nullptr) {
    const Reference find(Py_NewRef(span_lookup.find));
    span = call_without_dynamo(find.get(), &context, 1);
  }
  Reference found(span);
  if (found && found.get() != Py_None) return found;
  PyErr_Clear();
  return Reference(Py_XNewRef(span_lookup.none));
}

// Whether nothing has begun, in this task or around it, that a span could be later than. Ranges of
// PyTorch's are on the thread's stack alone.
bool is_in_nothing(const ThreadBuffer* buffer) {
  if (propagated_to(buffer) != nullptr || innermost(buffer) != nullptr) return false;
  return buffer == nullptr || buffer->open.depth == buffer->open.floor;
}

// What was current before the attach that returned the token.
Reference span_before(PyObject* token) {
  static PyObject* const name = PyUnicode_InternFromString("old_value");
  const Reference before(PyObject_GetAttr(token, name));
  if (before && PyDict_Check(before.get())) {
    return span_in(context_in_step(before.get(), innermost()));
  }
  PyErr_Clear();
  return Reference(Py_XNewRef(span_lookup.none));
}

// The one argument of attach or detach, by position or by name.
PyObject* argument_of(PyObject* const* args, size_t flagged, PyObject* names) {
  return PyVectorcall_NARGS(flagged) > 0 || names != nullptr ? args[0] : nullptr;
}

void note_span(PyObject* span, PyObject* token) {
  const Reference before = span_before(token);
  if (span == before.get()) {
    // Only something else in the context changed, baggage for instance.
    note_token(token);
  } else {
    push_span(span, token);
  }
}

PyObject* call_original(const ContextFunction& function, PyObject* const* args, size_t flagged,
                        PyObject* names) {
  return PyObject_Vectorcall(function.original, args, flagged, names);
}

// Whether the call is one that can be made at the original's ContextVar: with so many arguments,
// by position.
bool goes_to_variable(const ContextFunction& function, size_t flagged, PyObject* names,
                      Py_ssize_t count) {
  return function.variable != nullptr && names == nullptr && PyVectorcall_NARGS(flagged) == count;
}

PyObject* attach(const ContextFunction& function, PyObject* const* args, size_t flagged,
                 PyObject* names) {
  if (!goes_to_variable(function, flagged, names, 1)) {
    return call_original(function, args, flagged, names);
  }
  return set_variable(function.variable, args[0]);
}

PyObject* detach(const ContextFunction& function, PyObject* const* args, size_t flagged,
                 PyObject* names) {
  if (!goes_to_variable(function, flagged, names, 1) || !PyContextToken_CheckExact(args[0])) {
    return call_original(function, args, flagged, names);
  }
  return reset_variable(function.variable, args[0]) == 0 ? Py_NewRef(Py_None) : nullptr;
}

PyObject* attached_context(const ContextFunction& function, PyObject* const* args, size_t flagged,
                           PyObject* names) {
  if (!goes_to_variable(function, flagged, names, 0)) {
    return call_original(function, args, flagged, names);
  }
  PyObject* attached = nullptr;
  if (PyContextVar_Get(function.variable, nullptr, &attached) < 0) return nullptr;
  return attached != nullptr ? attached : call_original(function, args, flagged, names);
}

PyObject* call_attach(PyObject* self, PyObject* const* args, size_t flagged, PyObject* names) {
  const ContextFunction& function = as_function(self);
  PyObject* token = attach(function, args, flagged, names);
  PyObject* context = argument_of(args, flagged, names);
  if (token == nullptr || !function.active || context == nullptr) return token;
  const Reference span = span_in(context);
  if (span) {
    if (span.get() != span_lookup.none) current_spans.add(span.get());
    if (!is_in_nothing(registry().existing())) note_span(span.get(), token);
  }
  context_has_changed();
  return token;
}

PyObject* call_detach(PyObject* self, PyObject* const* args, size_t flagged, PyObject* names) {
  const ContextFunction& function = as_function(self);
  PyObject* result = detach(function, args, flagged, names);
  PyObject* token = argument_of(args, flagged, names);
  if (result == nullptr || !function.active || token == nullptr) return result;
  ThreadBuffer* buffer = registry().existing();
  if (!is_in_nothing(buffer)) {
    pop_attached(token);
  } else if (buffer != nullptr) {
    propagate_nothing(*buffer);
  }
  context_has_changed();
  return result;
}

// What `get_current` finds without asking Python; null where that has to be asked. Borrowed.
PyObject* known_context(const ContextFunction& function, PyObject* attached) {
  const ThreadBuffer* buffer = registry().existing();
  if (propagated_to(buffer) != nullptr) return nullptr;
  TaskEntry* newest = innermost(buffer);
  if (newest == nullptr) return attached;
  PyObject* const context = context_in_step(attached, newest);
  const uint32_t recording = globals().recording.load(std::memory_order_relaxed);
  if (function.exposed_by == 0 || (recording & kRecordingBit) == 0) return context;
  Reference span;
  for (TaskEntry* entry = newest; entry != nullptr; entry = living(entry->outer)) {
    if (!is_range(*entry)) {
      if (span_lookup.key == nullptr || !PyDict_Check(context)) return nullptr;
      if (!span) span = span_in(context);
      if (entry->span == span.get()) return context;
      continue;
    }
    const TaskEntry& range = own_entry(*entry);
    if (range.exposed_by != function.exposed_by) return nullptr;
    if (range.attached != nullptr) return range.attached == context ? range.exposed : nullptr;
  }
  return context;
}

PyObject* call_get_current(PyObject* self, PyObject* const* args, size_t flagged, PyObject* names) {
  const ContextFunction& function = as_function(self);
  PyObject* attached = attached_context(function, args, flagged, names);
  if (attached == nullptr || !function.active) return attached;
  PyObject* known = known_context(function, attached);
  if (known == attached) return attached;
  const Reference owned(attached);
  if (known != nullptr) return Py_NewRef(known);
  return call_without_dynamo(function.see, &attached, 1);
}

// --- the type

vectorcallfunc call_of(const char* name) {
  const std::string_view wanted(name);
  if (wanted == "attach") return call_attach;
  if (wanted == "detach") return call_detach;
  return wanted == "get_current" ? call_get_current : nullptr;
}

PyObject* new_function(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  const char* name;
  PyObject *original, *variable, *see;
  static const char* names[] = {"name", "original", "variable", "see", nullptr};
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "sOOO", const_cast<char**>(names), &name,
                                   &original, &variable, &see)) {
    return nullptr;
  }
  const vectorcallfunc call = call_of(name);
  if (call == nullptr) return PyErr_Format(PyExc_ValueError, "no function of contexts: %s", name);
  PyObject* self = type->tp_alloc(type, 0);
  if (self == nullptr) return nullptr;
  ContextFunction& function = as_function(self);
  function.call = call;
  function.original = Py_NewRef(original);
  function.variable = Reference::unless_none(variable).release();
  function.see = Py_NewRef(see);
  function.active = true;
  return self;
}

int traverse_function(PyObject* self, visitproc visit, void* arg) {
  const ContextFunction& function = as_function(self);
  Py_VISIT(function.original);
  Py_VISIT(function.variable);
  Py_VISIT(function.see);
  Py_VISIT(function.dict);
  return 0;
}

void free_function(PyObject* self) {
  ContextFunction& function = as_function(self);
  PyObject_GC_UnTrack(self);
  if (function.weak_references != nullptr) PyObject_ClearWeakRefs(self);
  Py_XDECREF(function.original);
  Py_XDECREF(function.variable);
  Py_XDECREF(function.see);
  Py_XDECREF(function.dict);
  Py_TYPE(self)->tp_free(self);
}

// The original is called as long as anything refers to the function: cycles through it end with the
// attributes.
int clear_function(PyObject* self) {
  Py_CLEAR(as_function(self).dict);
  return 0;
}

PyMemberDef function_members[] = {
    {"original", T_OBJECT, offsetof(ContextFunction, original), READONLY, "What it stands for."},
    {"exposed_by", T_ULONGLONG, offsetof(ContextFunction, exposed_by), 0,
     "Who exposes ranges, as TaskEntry.expose and hide have it; 0: nobody."},
    {"active", T_BOOL, offsetof(ContextFunction, active), 0,
     "Whether it does more than pass calls on."},
    {nullptr, 0, 0, 0, nullptr}};

PyGetSetDef function_properties[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyTypeObject function_type() {
  PyTypeObject type = type_of_size("otel_recfn._native.ContextFunction", sizeof(ContextFunction));
  type.tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC;
  type.tp_doc = "A function of OpenTelemetry's contexts that is watched.";
  type.tp_new = new_function;
  type.tp_dealloc = free_function;
  type.tp_traverse = traverse_function;
  type.tp_clear = clear_function;
  type.tp_call = PyVectorcall_Call;
  type.tp_vectorcall_offset = offsetof(ContextFunction, call);
  type.tp_dictoffset = offsetof(ContextFunction, dict);
  type.tp_weaklistoffset = offsetof(ContextFunction, weak_references);
  type.tp_members = function_members;
  type.tp_getset = function_properties;
  return type;
}

PyTypeObject ContextFunctionType = function_type();

PyObject* set_span_lookup(PyObject*, PyObject* args) {
  PyObject *key, *none, *find;
  if (!PyArg_ParseTuple(args, "OOO", &key, &none, &find)) return nullptr;
  const SpanLookup before = std::exchange(
      span_lookup, {Reference::unless_none(key).release(), Py_NewRef(none), Py_NewRef(find)});
  Py_XDECREF(before.key);
  Py_XDECREF(before.none);
  Py_XDECREF(before.find);
  Py_RETURN_NONE;
}

PyObject* take_current_spans(PyObject*, PyObject*) { return current_spans.take(); }

PyMethodDef context_functions[] = {
    {"take_current_spans", take_current_spans, METH_NOARGS,
     "take_current_spans() -> weak references to the spans that became current since"},
    {"set_span_lookup", set_span_lookup, METH_VARARGS, "set_span_lookup(key | None, none, find)"},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int add_context_functions(PyObject* module) {
  if (PyModule_AddType(module, &ContextFunctionType) < 0) return -1;
  return PyModule_AddFunctions(module, context_functions);
}

}  // namespace recfn
