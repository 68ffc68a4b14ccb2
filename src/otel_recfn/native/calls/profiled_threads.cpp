#include "calls/profiled_threads.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <vector>

#include "calls/enter_leave.hpp"

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

// The ids of those that have another profile function, which was told.
std::vector<uint64_t>& told() {
  static auto* instance = new std::vector<uint64_t>;
  return *instance;
}

// Those that had one at any time.
std::vector<uint64_t>& ever_told() {
  static auto* instance = new std::vector<uint64_t>;
  return *instance;
}

// Whether it is news that the thread has another profile function.
bool is_news(uint64_t thread, bool has_other) {
  const auto at = std::find(told().begin(), told().end(), thread);
  if (has_other == (at != told().end())) return false;
  if (has_other) return told().push_back(thread), ever_told().push_back(thread), true;
  return told().erase(at), false;
}

// Or is about to have it: one that `threading` has just started sets it at its first event.
bool has_it(PyThreadState* thread) {
  if (thread->c_profilefunc == on_profile_event) return true;
  PyObject* const hook = thread->c_profileobj;
  return hook != nullptr && PyCFunction_Check(hook) && PyCFunction_GetFunction(hook) == profile_this_thread;
}

bool have_it_all() {
  PyThreadState* at = PyInterpreterState_ThreadHead(PyInterpreterState_Get());
  while (at != nullptr && has_it(at)) at = PyThreadState_Next(at);
  return at == nullptr;
}

// What was open when another profile function came is over as far as anybody knows.
Py_ssize_t profile(PyThreadState* thread) {
  if (has_it(thread) || !tracer->is_on()) return 0;
  const uint64_t id = PyThreadState_GetID(thread);
  const bool has_other = thread->c_profilefunc != nullptr, was_traced = end_calls_of(id), news = is_news(id, has_other);
  if (!has_other && set(thread, on_profile_event, Py_None) < 0) return -1;
  return was_traced || news ? 1 : 0;
}

// Those that can be reached.
template <typename Work>
bool each_reached(Work work) {
  return reaches_other_threads() ? each_thread(work) : work(PyThreadState_Get());
}

}  // namespace

bool reaches_other_threads() { return set_profile() != nullptr; }

Py_ssize_t profile_threads() {
  Py_ssize_t others = 0;
  if (reaches_other_threads() && have_it_all()) return 0;
  const bool all = each_reached([&](PyThreadState* thread) {
    const Py_ssize_t other = profile(thread);
    others += other;
    return other >= 0;
  });
  if (!tracer->is_on()) unprofile_threads();  // it was stopped while a thread's was set
  return all ? others : -1;
}

bool had_other_profile_function(uint64_t thread) {
  return std::find(ever_told().begin(), ever_told().end(), thread) != ever_told().end();
}

void forget_told_threads() { told().clear(), ever_told().clear(); }

PyObject* profile_this_thread(PyObject*, PyObject*) {
  if (tracer->is_on()) {
    PyEval_SetProfile(on_profile_event, Py_None);
  } else {
    PyEval_SetProfile(nullptr, nullptr);
  }
  Py_RETURN_NONE;
}

void unprofile_this_thread() {
  if (!reaches_other_threads()) PyEval_SetProfile(nullptr, nullptr);
}

void unprofile_threads() {
  each_reached([&](PyThreadState* thread) {
    if (thread->c_profilefunc == on_profile_event && set(thread, nullptr, nullptr) < 0) PyErr_Clear();
    return true;
  });
}

}  // namespace recfn
