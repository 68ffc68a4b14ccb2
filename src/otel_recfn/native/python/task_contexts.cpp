#include "python/task_contexts.hpp"

#include "cpython/python.hpp"

#include <algorithm>
#include <unordered_map>

namespace recfn {
namespace {

constexpr size_t kSweepAbove = 256;

struct Numbered {
  uint64_t number;
  PyObject* alive;  // a weak reference: another context may get the address
};

Py_ssize_t outer_offset = -1;
uint64_t last_number = 0;
size_t sweep_above = kSweepAbove;

std::unordered_map<PyObject*, Numbered>& numbered() {
  static auto* instance = new std::unordered_map<PyObject*, Numbered>;
  return *instance;
}

bool is_alive(const Numbered& known) {
#if PY_VERSION_HEX >= 0x030D0000
  PyObject* referent = nullptr;
  const bool alive = PyWeakref_GetRef(known.alive, &referent) == 1;
  Py_XDECREF(referent);
  return alive;
#else
  return PyWeakref_GetObject(known.alive) != Py_None;
#endif
}

void forget_dead() {
  auto& known = numbered();
  for (auto at = known.begin(); at != known.end();) {
    if (is_alive(at->second)) {
      ++at;
      continue;
    }
    Py_DECREF(at->second.alive);
    at = known.erase(at);
  }
  sweep_above = std::max(kSweepAbove, 2 * known.size());
}

// 0, which no context has, where there is no memory.
uint64_t number_of(PyObject* context) {
  auto& known = numbered();
  const auto found = known.find(context);
  if (found != known.end() && is_alive(found->second)) return found->second.number;
  if (known.size() > sweep_above) forget_dead();
  const Made alive(PyWeakref_NewRef(context, nullptr));
  if (alive.object == nullptr) return PyErr_Clear(), 0;
  uint64_t number = 0;
  had_memory_for([&] {
    Numbered& one = known[context];
    Py_XSETREF(one.alive, Py_NewRef(alive.object));
    number = one.number = ++last_number;
  });
  return number;
}

PyObject* outer_of(PyObject* context) {
  if (outer_offset < 0) return nullptr;
  PyObject* outer = *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(context) + outer_offset);
  return outer != nullptr && PyContext_CheckExact(outer) ? outer : nullptr;
}

// Where `inner`, entered inside `outer`, keeps it.
Py_ssize_t offset_of_outer(PyObject* inner, PyObject* outer) {
  constexpr auto kStep = static_cast<Py_ssize_t>(sizeof(PyObject*));
  for (Py_ssize_t at = sizeof(PyObject); at + kStep <= Py_TYPE(inner)->tp_basicsize; at += kStep) {
    if (*reinterpret_cast<PyObject**>(reinterpret_cast<char*>(inner) + at) == outer) return at;
  }
  return -1;
}

}  // namespace

uint64_t entered_contexts(uint64_t* numbers, uint64_t most) {
  uint64_t count = 0;
  for (PyObject* context = PyThreadState_Get()->context; context != nullptr && count < most; context = outer_of(context)) {
    numbers[count++] = number_of(context);
  }
  return count;
}

void find_outer_context_offset() {
  PyObject *outer = PyContext_New(), *inner = PyContext_New();
  if (outer != nullptr && inner != nullptr && PyContext_Enter(outer) == 0) {
    if (PyContext_Enter(inner) == 0) {
      if (PyThreadState_Get()->context == inner) outer_offset = offset_of_outer(inner, outer);
      PyContext_Exit(inner);
    }
    PyContext_Exit(outer);
  }
  Py_XDECREF(outer);
  Py_XDECREF(inner);
  PyErr_Clear();
}

bool knows_outer_contexts() { return outer_offset >= 0; }

}  // namespace recfn
