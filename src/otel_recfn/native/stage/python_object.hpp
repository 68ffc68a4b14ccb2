// An object of Python's with one of ours in it, which it makes and destroys.
#pragma once
#include <new>

#include "cpython/python.hpp"

namespace recfn::stage {

// For one thread at a time.
template <typename T>
struct Wrapped {
  PyObject_HEAD
  T value;

  template <typename... Arguments>
  static PyObject* make(PyTypeObject* type, Arguments... arguments) {
    PyObject* self = type->tp_alloc(type, 0);
    if (self == nullptr) return nullptr;
    if (had_memory_for([&] { new (&reinterpret_cast<Wrapped*>(self)->value) T(arguments...); })) {
      return self;
    }
    type->tp_free(self);
    return PyErr_NoMemory();
  }

  static void dealloc(PyObject* self) {
    reinterpret_cast<Wrapped*>(self)->value.~T();
    Py_TYPE(self)->tp_free(self);
  }

  // One thread at a time uses it: the drain. False with an error set where memory is short.
  template <typename Work>
  static bool done_alone(PyObject* self, bool is_long, Work work) {
    return without_gil_if(is_long, [&] { work(reinterpret_cast<Wrapped*>(self)->value); });
  }

  static PyTypeObject type(const char* name, newfunc make_new, PyMethodDef* methods,
                           const char* documentation) {
    PyTypeObject type = type_of_size(name, sizeof(Wrapped));
    type.tp_flags |= Py_TPFLAGS_BASETYPE;
    type.tp_new = make_new;
    type.tp_dealloc = dealloc;
    type.tp_methods = methods;
    type.tp_doc = documentation;
    return type;
  }
};

}  // namespace recfn::stage
