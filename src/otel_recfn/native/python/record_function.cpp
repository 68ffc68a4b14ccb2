// The type of `record_function` objects.
#include "python/record_function.hpp"

#include <structmember.h>

#include <cstddef>

#include "cpython/python.hpp"

namespace recfn {
namespace {

PyTypeObject bound_type() {
  PyTypeObject type = type_of_size("otel_recfn._native.bound_method", sizeof(BoundMethod));
  type.tp_dealloc = [](PyObject* self) { Py_DECREF(owner_of(self)); };  // the memory is the owner's
  type.tp_call = PyVectorcall_Call;
  type.tp_vectorcall_offset = offsetof(BoundMethod, call);
  type.tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
  return type;
}

PyTypeObject BoundMethodType = bound_type();

struct Descriptor {
  PyObject_HEAD
  // As the type had it: what the class gives, and what is called with the object as first argument.
  PyObject* method;
  Py_ssize_t offset;
};

PyObject* descriptor_get(PyObject* self, PyObject* object, PyObject*) {
  const auto* descriptor = reinterpret_cast<Descriptor*>(self);
  if (object == nullptr || object == Py_None) return Py_NewRef(descriptor->method);
  PyObject* bound =
      reinterpret_cast<PyObject*>(reinterpret_cast<char*>(object) + descriptor->offset);
  if (bound->ob_refcnt > 0) return Py_NewRef(bound);
  Py_INCREF(object);
  return PyObject_Init(bound, &BoundMethodType);
}

PyObject* descriptor_call(PyObject* self, PyObject* args, PyObject* keywords) {
  return PyObject_Call(reinterpret_cast<Descriptor*>(self)->method, args, keywords);
}

PyTypeObject descriptor_type() {
  PyTypeObject type = type_of_size("otel_recfn._native.method", sizeof(Descriptor));
  type.tp_call = descriptor_call;
  type.tp_descr_get = descriptor_get;
  return type;
}

PyTypeObject DescriptorType = descriptor_type();

// Makes `type.name`, a method that stands in the type already, bind to the BoundMethod at `offset`
// of the object.
int embed_bound_method(PyTypeObject& type, const char* name, Py_ssize_t offset) {
  PyObject* method = PyDict_GetItemString(type.tp_dict, name);
  auto* descriptor = method != nullptr ? PyObject_New(Descriptor, &DescriptorType) : nullptr;
  if (descriptor == nullptr) return -1;
  descriptor->method = Py_NewRef(method);
  descriptor->offset = offset;
  const int result =
      PyDict_SetItemString(type.tp_dict, name, reinterpret_cast<PyObject*>(descriptor));
  Py_DECREF(descriptor);
  PyType_Modified(&type);
  return result;
}

// Objects live for one `with` each: a few are kept for the next.
constexpr int kMaxSpareRanges = 16;
PyObject* spare_ranges[kMaxSpareRanges];
int spare_range_count = 0;

extern PyTypeObject RecordFunctionType;

void init_bound_method(BoundMethod& bound, vectorcallfunc call, PyObject* owner) {
  reinterpret_cast<PyObject*>(&bound)->ob_refcnt = 0;
  bound.call = call;
  bound.owner = owner;
}

// `name` is a str, `args` one or None.
PyObject* make(PyObject* name, PyObject* args) {
  PyObject* self;
  if (spare_range_count > 0) {
    self = spare_ranges[--spare_range_count];
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
  range->code = nullptr;
  range->entered_async = nullptr;
  range->entered = 0;
  range->newest = {};
  range->earlier = nullptr;
  return self;
}

// Of the stand-in that was made with the same arguments, which refused what they may not be; null
// where it did.
PyObject* make_as(PyObject* replacement) {
  const Reference checked(replacement);
  if (!checked) return nullptr;
  const Reference name(PyObject_GetAttrString(replacement, "name"));
  const Reference args(PyObject_GetAttrString(replacement, "args"));
  return name && args ? make(name.get(), args.get()) : nullptr;
}

PyObject* range_new(PyTypeObject*, PyObject* args, PyObject* keywords) {
  return make_as(PyObject_Call(record_function_helpers.replacement, args, keywords));
}

// Of a decorated function: name, args (both checked before) and what it decorates.
PyObject* code_range(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 3 || !PyUnicode_Check(args[0]) || !PyUnicode_Check(args[2])) {
    return PyErr_Format(PyExc_TypeError, "_with_code takes a name, args and what is decorated");
  }
  PyObject* made = make(args[0], args[1]);
  if (made != nullptr) as_range(made)->code = Py_NewRef(args[2]);
  return made;
}

PyObject* range_vectorcall(PyObject*, PyObject* const* args, size_t count, PyObject* keywords) {
  if (keywords == nullptr && PyVectorcall_NARGS(count) == 1 && PyUnicode_Check(args[0])) {
    return make(args[0], Py_None);
  }
  return make_as(PyObject_Vectorcall(record_function_helpers.replacement, args, count, keywords));
}

void range_dealloc(PyObject* self) {
  RecordFunctionObject* range = as_range(self);
  Py_DECREF(range->name);
  Py_DECREF(range->args);
  Py_XDECREF(range->code);
  Py_XDECREF(range->entered_async);
  if (range->entered > 0) forget(range->newest);
  if (range->earlier != nullptr) {
    for (const RangeEntry& entry : *range->earlier) forget(entry);
    delete range->earlier;
  }
  if (spare_range_count < kMaxSpareRanges) {
    spare_ranges[spare_range_count++] = self;
  } else {
    Py_TYPE(self)->tp_free(self);
  }
}

PyObject* range_call(PyObject* self, PyObject* args, PyObject*) {
  PyObject* function;
  if (!PyArg_UnpackTuple(args, "record_function.__call__", 1, 1, &function)) return nullptr;
  PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(self));
  const auto* range = as_range(self);
  return PyObject_CallFunctionObjArgs(record_function_helpers.decorate, type, range->name,
                                      range->args, function, nullptr);
}

PyObject* range_aenter(PyObject* self, PyObject*) {
  return PyObject_CallOneArg(record_function_helpers.aenter, self);
}

PyObject* range_aexit(PyObject* self, PyObject* args) {
  PyObject* kind;
  PyObject* error;
  PyObject* traceback;
  if (!PyArg_UnpackTuple(args, "record_function.__aexit__", 3, 3, &kind, &error, &traceback)) {
    return nullptr;
  }
  return PyObject_CallFunctionObjArgs(record_function_helpers.aexit, self, kind, error, traceback,
                                      nullptr);
}

PyObject* range_repr(PyObject* self) {
  const RecordFunctionObject& range = *as_range(self);
  if (range.args == Py_None) return PyUnicode_FromFormat("record_function(%R)", range.name);
  return PyUnicode_FromFormat("record_function(%R, %R)", range.name, range.args);
}

// For copies and pickles: another one of the same name and args, which is not open.
PyObject* range_reduce(PyObject* self, PyObject*) {
  return Py_BuildValue("O(OO)", Py_TYPE(self), as_range(self)->name, as_range(self)->args);
}

PyMethodDef range_methods[] = {
    {"_with_code", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(code_range)),
     METH_FASTCALL | METH_STATIC, nullptr},
    {"__enter__", range_enter, METH_NOARGS, "Open the range in this thread."},
    {"__exit__", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(range_exit)), METH_FASTCALL,
     "Close it; an exception marks it."},
    {"__aenter__", range_aenter, METH_NOARGS, "Open the range in this task."},
    {"__aexit__", range_aexit, METH_VARARGS, "Close it; an exception marks it."},
    {"__reduce__", range_reduce, METH_NOARGS, "Copy and pickle it as one that is not open."},
    {nullptr, nullptr, 0, nullptr}};

PyMemberDef range_members[] = {
    {"name", T_OBJECT_EX, offsetof(RecordFunctionObject, name), READONLY, "The range's name."},
    {"args", T_OBJECT_EX, offsetof(RecordFunctionObject, args), READONLY,
     "The range's arguments, or None."},
    {"_code", T_OBJECT, offsetof(RecordFunctionObject, code), READONLY, nullptr},
    {"_entered", T_OBJECT, offsetof(RecordFunctionObject, entered_async), 0, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

constexpr const char* kDoc =
    "record_function(name, args=None)\n--\n\n"
    "Records a block of code as a range, like torch.profiler.record_function: `with "
    "record_function(\"load batch\"):`, `async with`, or a decorator.\n\n"
    "Args:\n    name: the range's name; names longer than 2,048 bytes of UTF-8 are cut.\n"
    "    args: a text for callbacks that need inputs, or None.\n\n"
    "Raises:\n    TypeError: `name` is not a str, or `args` is neither a str nor None.";

PyTypeObject range_type() {
  PyTypeObject type = type_of_size("otel_recfn.record_function", sizeof(RecordFunctionObject));
  type.tp_dealloc = range_dealloc;
  type.tp_repr = range_repr;
  type.tp_call = range_call;
  type.tp_flags |= Py_TPFLAGS_IMMUTABLETYPE;
  type.tp_doc = kDoc;
  type.tp_methods = range_methods;
  type.tp_members = range_members;
  type.tp_new = range_new;
  type.tp_vectorcall = range_vectorcall;
  return type;
}

PyTypeObject RecordFunctionType = range_type();

PyObject* set_helpers(PyObject*, PyObject* args, PyObject* keywords) {
  static const char* names[] = {"decorate", "aenter", "aexit", "failure", "replacement", nullptr};
  RecordFunctionHelpers& all = record_function_helpers;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "$OOOOO:set_record_function_helpers",
                                   const_cast<char**>(names), &all.decorate, &all.aenter,
                                   &all.aexit, &all.failure, &all.replacement)) {
    return nullptr;
  }
  for (PyObject* helper : {all.decorate, all.aenter, all.aexit, all.failure, all.replacement}) {
    Py_INCREF(helper);
  }
  Py_RETURN_NONE;
}

PyMethodDef helper_functions[] = {
    {"set_record_function_helpers", with_keywords(set_helpers), METH_VARARGS | METH_KEYWORDS,
     "set_record_function_helpers(*, decorate, aenter, aexit, failure, replacement)\n--\n\n"
     "What ranges call in Python."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int add_record_function_type(PyObject* module) {
  if (PyType_Ready(&RecordFunctionType) < 0 ||
      PyModule_AddFunctions(module, helper_functions) < 0) {
    return -1;
  }
  if (PyType_Ready(&BoundMethodType) < 0 || PyType_Ready(&DescriptorType) < 0 ||
      embed_bound_method(RecordFunctionType, "__enter__", offsetof(RecordFunctionObject, enter)) <
          0 ||
      embed_bound_method(RecordFunctionType, "__exit__", offsetof(RecordFunctionObject, exit)) <
          0) {
    return -1;
  }
  return PyModule_AddType(module, &RecordFunctionType);
}

}  // namespace recfn
