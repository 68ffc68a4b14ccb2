#include "python/range_observer.hpp"

#include "core/globals.hpp"
#include "core/registry.hpp"

namespace recfn {
namespace {

PyObject* observer = nullptr;  // (name, args, flags) -> a handle with event_id and end(error); see recording/ranges.py
uint64_t observer_version = 0;

// Of the calling thread; they count while `version` is the observer's.
struct Unobserved {
  uint64_t ranges;
  uint64_t version;
};
thread_local Unobserved unobserved RECFN_FAST_TLS = {0, 0};

PyObject* set_range_observer(PyObject*, PyObject* args) {
  PyObject* wanted;
  unsigned long long version = 0;
  if (!PyArg_ParseTuple(args, "O|K", &wanted, &version)) return nullptr;
  PyObject* before = observer;
  observer = wanted != Py_None ? Py_NewRef(wanted) : nullptr;
  observer_version = version;
  if (observer != nullptr) {
    globals().recording.fetch_or(kObservedBit);
  } else {
    globals().recording.fetch_and(~kObservedBit);
  }
  Py_XDECREF(before);
  Py_RETURN_NONE;
}

PyObject* range_observer(PyObject*, PyObject*) { return Py_NewRef(observer != nullptr ? observer : Py_None); }

PyObject* leave_unobserved(PyObject*, PyObject* args) {
  unsigned long long ranges, version;
  if (!PyArg_ParseTuple(args, "KK", &ranges, &version)) return nullptr;
  unobserved = {version == observer_version ? ranges : 0, version};
  return PyLong_FromUnsignedLongLong(unobserved.ranges);
}

PyObject* take_back_unobserved(PyObject*, PyObject*) {
  const uint64_t left = unobserved.version == observer_version ? unobserved.ranges : 0;
  unobserved.ranges = 0;
  return PyLong_FromUnsignedLongLong(left);
}

PyMethodDef observer_functions[] = {
    {"set_range_observer", set_range_observer, METH_VARARGS, "set_range_observer(observer | None, version=0)"},
    {"range_observer", range_observer, METH_NOARGS, "range_observer() -> what was set, or None"},
    {"leave_unobserved", leave_unobserved, METH_VARARGS, "leave_unobserved(ranges, version) -> how many won't be observed."},
    {"take_back_unobserved", take_back_unobserved, METH_NOARGS, "take_back_unobserved() -> how many of them were left."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

bool begins_unobserved() {
  if (unobserved.ranges == 0 || unobserved.version != observer_version) return false;
  --unobserved.ranges;
  return true;
}

// The observer may be replaced while it is called: it is held meanwhile.
PyObject* observe_range(const RecordFunctionObject& range) {
  PyObject* called = Py_NewRef(observer);
  PyObject* handle = range.code != nullptr ? PyObject_CallFunction(called, "OOiO", range.name, range.args, 0, range.code)
                                           : PyObject_CallFunction(called, "OOis", range.name, range.args, 0, "");
  Py_DECREF(called);
  return handle;
}

int add_range_observer(PyObject* module) { return PyModule_AddFunctions(module, observer_functions); }

}  // namespace recfn
