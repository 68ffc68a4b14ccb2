// What a `record_function` object holds, and how it is entered and left.
#pragma once
#include <cstdint>
#include <vector>

#include "cpython/python.hpp"
#include "parents/tasks/task_entries.hpp"

namespace recfn {

// A bound method that lives inside the object it is bound to.
//
// A `with` statement looks up __enter__ and __exit__ and binds both, and for methods written in C
// each binding allocates an object that the garbage collector tracks: more than recording a range
// costs. Here the bound object is a part of its owner, which saves 40 ns of a range. Its reference
// count is zero while nobody holds it; who takes it first makes it hold a reference to its owner.
struct BoundMethod {
  PyObject_HEAD
  vectorcallfunc call;
  PyObject* owner;
};

inline PyObject* owner_of(PyObject* bound) { return reinterpret_cast<BoundMethod*>(bound)->owner; }

// The rarely used parts are written in Python (recording/ranges.py, which sets them once;
// support/code_names.py). The stand-in of recording/signatures.py says what may be given.
struct RecordFunctionHelpers {
  PyObject* decorate = nullptr;
  PyObject* aenter = nullptr;
  PyObject* aexit = nullptr;
  PyObject* failure = nullptr;
  PyObject* replacement = nullptr;
};

struct RangeEntry {
  uint64_t event_id;
  uint64_t thread;
  PyObject* handle;    // the range observer's, owned; null where the recorder alone sees the range
  TaskEntry* in_task;  // owned; null where it is not recorded
};

inline void forget(const RangeEntry& entry) {
  Py_XDECREF(entry.handle);
  Py_XDECREF(reinterpret_cast<PyObject*>(entry.in_task));
}

struct RecordFunctionObject {
  PyObject_HEAD
  BoundMethod enter, exit;
  PyObject* name;
  PyObject* args;
  PyObject* code;           // a str: what it decorates; null where nothing
  PyObject* entered_async;  // recording/ranges.py keeps here what __aexit__ needs
  uint32_t entered;         // how often it is entered and not left
  RangeEntry newest;        // of these
  // The others: the object is entered again while open, or shared by threads.
  std::vector<RangeEntry>* earlier;
};

inline RecordFunctionObject* as_range(PyObject* self) {
  return reinterpret_cast<RecordFunctionObject*>(self);
}

inline RecordFunctionHelpers record_function_helpers;

// The methods, and what the bound ones call.
PyObject* range_enter(PyObject* self, PyObject*);
PyObject* range_exit(PyObject* self, PyObject* const* args, Py_ssize_t count);
PyObject* call_enter(PyObject* bound, PyObject* const* args, size_t count, PyObject* keywords);
PyObject* call_exit(PyObject* bound, PyObject* const* args, size_t count, PyObject* keywords);

}  // namespace recfn
