#include "calls/thread_calls.hpp"

#include <algorithm>
#include <new>

namespace recfn {
namespace {

std::vector<ThreadCalls*>& known() {
  static auto* instance = new std::vector<ThreadCalls*>;
  return *instance;
}

void dealloc(PyObject* self) {
  ThreadCalls* calls = reinterpret_cast<ThreadCallsObject*>(self)->calls;
  known().erase(std::remove(known().begin(), known().end(), calls), known().end());
  delete calls;
  Py_TYPE(self)->tp_free(self);
}

PyTypeObject thread_calls_type() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "otel_recfn._native.ThreadCalls";
  type.tp_basicsize = sizeof(ThreadCallsObject);
  type.tp_dealloc = dealloc;
  type.tp_flags = Py_TPFLAGS_DEFAULT;
  type.tp_doc = "The traced calls that are open in a thread.";
  return type;
}

PyTypeObject ThreadCallsType = thread_calls_type();

}  // namespace

PyObject* new_thread_calls() try {
  auto* object = PyObject_New(ThreadCallsObject, &ThreadCallsType);
  if (object == nullptr) return nullptr;
  object->calls = nullptr;
  auto* calls = new (std::nothrow) ThreadCalls;
  object->calls = calls;
  if (calls != nullptr) {
    known().push_back(calls);
    return reinterpret_cast<PyObject*>(object);
  }
  Py_DECREF(object);
  return PyErr_NoMemory();
} catch (const std::bad_alloc&) {
  return PyErr_NoMemory();
}

const std::vector<ThreadCalls*>& all_thread_calls() { return known(); }

int add_thread_calls(PyObject*) { return PyType_Ready(&ThreadCallsType); }

}  // namespace recfn
