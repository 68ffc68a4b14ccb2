#include "calls/profiled_threads.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <vector>

namespace recfn {
namespace {

using SetProfile = int (*)(PyThreadState*, Py_tracefunc, PyObject*);

// CPython's own means for other threads has no public name before 3.12, and there only one for all threads at once.
SetProfile set_profile() {
  static const auto found = reinterpret_cast<SetProfile>(dlsym(RTLD_DEFAULT, "_PyEval_SetProfile"));
  return found;
}

int set(PyThreadState* thread, Py_tracefunc function, PyObject* argument) {
  if (const SetProfile set_of = set_profile()) return set_of(thread, function, argument);
  PyEval_SetProfile(function, argument);
  return PyErr_Occurred() ? -1 : 0;
}

Py_ssize_t profile(PyThreadState* thread, Py_tracefunc function) {
  if (thread->c_profilefunc != nullptr) return thread->c_profilefunc == function ? 0 : 1;
  return set(thread, function, Py_None);
}

// Each thread once. Setting a profile function may let other threads run, which may start and end: so the list is read anew.
template <typename Work>
bool each_thread(Work work) {
  std::vector<uint64_t> done;
  if (!reaches_other_threads()) return work(PyThreadState_Get());
  PyInterpreterState* const interpreter = PyInterpreterState_Get();
  for (PyThreadState* at = PyInterpreterState_ThreadHead(interpreter); at != nullptr;) {
    const uint64_t id = PyThreadState_GetID(at);
    if (std::find(done.begin(), done.end(), id) != done.end()) {
      at = PyThreadState_Next(at);
      continue;
    }
    done.push_back(id);
    if (!work(at)) return false;
    at = PyInterpreterState_ThreadHead(interpreter);
  }
  return true;
}

}  // namespace

bool reaches_other_threads() { return set_profile() != nullptr; }

Py_ssize_t profile_threads(Py_tracefunc function) {
  Py_ssize_t others = 0;
  const bool all = each_thread([&](PyThreadState* thread) {
    const Py_ssize_t other = profile(thread, function);
    others += other;
    return other >= 0;
  });
  return all ? others : -1;
}

void unprofile_this_thread() {
  if (!reaches_other_threads()) PyEval_SetProfile(nullptr, nullptr);
}

void unprofile_threads(Py_tracefunc function) {
  each_thread([&](PyThreadState* thread) {
    if (thread->c_profilefunc == function && set(thread, nullptr, nullptr) < 0) PyErr_Clear();
    return true;
  });
}

}  // namespace recfn
