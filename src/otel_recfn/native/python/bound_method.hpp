// A bound method that lives inside the object it is bound to.
//
// A `with` statement looks up __enter__ and __exit__ and binds both, and for methods written in C each binding allocates an
// object that the garbage collector tracks: more than recording a range costs. Here the bound object is a part of its owner.
// Its reference count is zero while nobody holds it; who takes it first makes it hold a reference to its owner.
#pragma once
#include "cpython/python.hpp"

namespace recfn {

struct BoundMethod {
  PyObject_HEAD
  vectorcallfunc call;
  PyObject* owner;
};

int ready_bound_methods();

// To be called when the owner is made.
inline void init_bound_method(BoundMethod& bound, vectorcallfunc call, PyObject* owner) {
  reinterpret_cast<PyObject*>(&bound)->ob_refcnt = 0;
  bound.call = call;
  bound.owner = owner;
}

inline PyObject* owner_of(PyObject* bound) { return reinterpret_cast<BoundMethod*>(bound)->owner; }

// Makes `type.name`, a method that stands in the type already, bind to the BoundMethod at `offset` of the object.
int embed_bound_method(PyTypeObject& type, const char* name, Py_ssize_t offset);

}  // namespace recfn
