// The contextvars contexts that are entered in a thread: whether they may have changed, and which
// they are, as numbers that are never given twice.
//
//     PyThreadState ─► context ──► outer context ──► outer context        as they were entered
//                         7             3                 1               number_of each
//
// A context's address may be another one's later: a number goes with a weak reference, and counts
// while that refers to something.
#pragma once
#include <algorithm>
#include <cstdint>
#include <unordered_map>

#include "core/globals.hpp"
#include "cpython/python.hpp"
#include "cpython/weak_references.hpp"

namespace recfn {

// Changes also when another refresh may find that the thread is to be disabled.
inline uint64_t version_with_sampling(const Globals& globals, uint64_t version) {
  return version << 1 | globals.sampled_alone.load(std::memory_order_relaxed);
}

// Changes with the thread's contextvars context: CPython counts it up, for its own caches, where a
// context is entered or left. It doesn't where a variable is set, so whoever attaches a span or
// enters a range says that the context has changed (`context_has_changed`).
inline uint64_t context_version_of(const Globals& globals, const PyThreadState* state) {
  return version_with_sampling(globals, state->context_ver);
}

constexpr size_t kMinSweepSize = 256;

// A context that has a number.
struct Numbered {
  uint64_t number;
  PyObject* alive;  // a weak reference: another context may get the address
};

inline Py_ssize_t outer_offset = -1;
inline uint64_t last_number = 0;
inline size_t sweep_size = kMinSweepSize;

inline std::unordered_map<PyObject*, Numbered>& numbered() {
  static auto* instance = new std::unordered_map<PyObject*, Numbered>;
  return *instance;
}

inline bool is_alive(const Numbered& known) { return refers_to_living(known.alive); }

inline void forget_dead() {
  auto& known = numbered();
  for (auto at = known.begin(); at != known.end();) {
    if (is_alive(at->second)) {
      ++at;
      continue;
    }
    Py_DECREF(at->second.alive);
    at = known.erase(at);
  }
  sweep_size = std::max(kMinSweepSize, 2 * known.size());
}

// 0, which no context has, where there is no memory.
inline uint64_t number_of(PyObject* context) {
  auto& known = numbered();
  const auto found = known.find(context);
  if (found != known.end() && is_alive(found->second)) return found->second.number;
  if (known.size() > sweep_size) forget_dead();
  const Reference alive(PyWeakref_NewRef(context, nullptr));
  if (!alive) {
    PyErr_Clear();
    return 0;
  }
  uint64_t number = 0;
  had_memory_for([&] {
    Numbered& one = known[context];
    Py_XSETREF(one.alive, Py_NewRef(alive.get()));
    one.number = ++last_number;
    number = one.number;
  });
  return number;
}

inline PyObject* outer_of(PyObject* context) {
  if (outer_offset < 0) return nullptr;
  PyObject* outer = *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(context) + outer_offset);
  return outer != nullptr && PyContext_CheckExact(outer) ? outer : nullptr;
}

// Where `inner`, entered inside `outer`, keeps it.
inline Py_ssize_t outer_context_offset(PyObject* inner, PyObject* outer) {
  constexpr auto kStep = static_cast<Py_ssize_t>(sizeof(PyObject*));
  for (Py_ssize_t at = sizeof(PyObject); at + kStep <= Py_TYPE(inner)->tp_basicsize; at += kStep) {
    if (*reinterpret_cast<PyObject**>(reinterpret_cast<char*>(inner) + at) == outer) return at;
  }
  return -1;
}

// Fills at most `limit` numbers, the innermost context's first; returns how many. Needs the GIL.
inline uint64_t entered_contexts(uint64_t* numbers, uint64_t limit) {
  uint64_t count = 0;
  for (PyObject* context = PyThreadState_Get()->context; context != nullptr && count < limit;
       context = outer_of(context)) {
    numbers[count++] = number_of(context);
  }
  return count;
}

// Whether a frame of the calling thread can be suspended and resumed: a coroutine's or a
// generator's. Needs the GIL.
inline bool has_resumable_frames() {
  constexpr int kResumable =
      CO_GENERATOR | CO_COROUTINE | CO_ITERABLE_COROUTINE | CO_ASYNC_GENERATOR;
  bool found = false;
  for (PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get()); frame != nullptr;) {
    PyCodeObject* const code = PyFrame_GetCode(frame);
    found = found || (code->co_flags & kResumable) != 0;
    Py_DECREF(code);
    PyFrameObject* const caller = found ? nullptr : PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = caller;
  }
  return found;
}

// Whether threads of the process may switch between stacks of all kinds of frames. Needs the GIL,
// without an error set.
inline bool has_greenlets() {
  PyObject* const module = PyDict_GetItemString(PyImport_GetModuleDict(), "greenlet._greenlet");
  if (module == nullptr) return false;
  const Reference threads(PyObject_CallMethod(module, "get_total_main_greenlets", nullptr));
  const bool none = threads && PyObject_IsTrue(threads.get()) == 0;
  PyErr_Clear();
  return !none;
}

// Whether what runs in the calling thread may have been suspended, for others to run: asked where
// the version has changed, since `Context.run` changes it too, and returns to where it was called.
inline bool may_have_been_suspended() {
  if (!python_knows_this_thread()) return false;
  const WithGil python;
  return has_resumable_frames() || has_greenlets();
}

// Finds out, once, where CPython keeps a context's outer one, by entering one context in another:
// the struct is private, and no two versions promise the same one. Where that can't be found only
// the innermost is known.
inline void find_outer_context_offset() {
  PyObject* const outer = PyContext_New();
  PyObject* const inner = PyContext_New();
  if (outer != nullptr && inner != nullptr && PyContext_Enter(outer) == 0) {
    if (PyContext_Enter(inner) == 0) {
      if (PyThreadState_Get()->context == inner) outer_offset = outer_context_offset(inner, outer);
      PyContext_Exit(inner);
    }
    PyContext_Exit(outer);
  }
  Py_XDECREF(outer);
  Py_XDECREF(inner);
  PyErr_Clear();
}

}  // namespace recfn
