#include "python/bound_method.hpp"

#include <cstddef>

namespace recfn {
namespace {

PyTypeObject bound_type() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "otel_recfn._native.bound_method";
  type.tp_basicsize = sizeof(BoundMethod);
  type.tp_dealloc = [](PyObject* self) { Py_DECREF(owner_of(self)); };  // the memory is the owner's
  type.tp_call = PyVectorcall_Call;
  type.tp_vectorcall_offset = offsetof(BoundMethod, call);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL;
  return type;
}

PyTypeObject BoundMethodType = bound_type();

struct Descriptor {
  PyObject_HEAD
  PyObject* method;  // as the type had it: what the class gives, and what is called with the object as first argument
  Py_ssize_t offset;
};

PyObject* descriptor_get(PyObject* self, PyObject* object, PyObject*) {
  const auto* descriptor = reinterpret_cast<Descriptor*>(self);
  if (object == nullptr || object == Py_None) return Py_NewRef(descriptor->method);
  PyObject* bound = reinterpret_cast<PyObject*>(reinterpret_cast<char*>(object) + descriptor->offset);
  if (bound->ob_refcnt > 0) return Py_NewRef(bound);
  Py_INCREF(object);
  return PyObject_Init(bound, &BoundMethodType);
}

PyObject* descriptor_call(PyObject* self, PyObject* args, PyObject* keywords) {
  return PyObject_Call(reinterpret_cast<Descriptor*>(self)->method, args, keywords);
}

PyTypeObject descriptor_type() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "otel_recfn._native.method";
  type.tp_basicsize = sizeof(Descriptor);
  type.tp_call = descriptor_call;
  type.tp_descr_get = descriptor_get;
  type.tp_flags = Py_TPFLAGS_DEFAULT;
  return type;
}

PyTypeObject DescriptorType = descriptor_type();

}  // namespace

int ready_bound_methods() { return PyType_Ready(&BoundMethodType) < 0 || PyType_Ready(&DescriptorType) < 0 ? -1 : 0; }

int embed_bound_method(PyTypeObject& type, const char* name, Py_ssize_t offset) {
  PyObject* method = PyDict_GetItemString(type.tp_dict, name);
  auto* descriptor = method != nullptr ? PyObject_New(Descriptor, &DescriptorType) : nullptr;
  if (descriptor == nullptr) return -1;
  descriptor->method = Py_NewRef(method);
  descriptor->offset = offset;
  const int result = PyDict_SetItemString(type.tp_dict, name, reinterpret_cast<PyObject*>(descriptor));
  Py_DECREF(descriptor);
  PyType_Modified(&type);
  return result;
}

}  // namespace recfn
