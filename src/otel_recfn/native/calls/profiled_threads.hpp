// CPython's profile function, which it calls at each call and return of the threads that have it: set and taken away in any thread
// that Python knows.
#pragma once
#include "cpython/python.hpp"

#include <algorithm>
#include <vector>

namespace recfn {

// The profile function: what `PyEval_SetProfile` takes. The object is of no use.
int on_profile_event(PyObject* object, PyFrameObject* frame, int what, PyObject* argument);

// Whether this CPython lets us set the profile function of other threads than the calling one.
bool reaches_other_threads();

// Sets it in every thread that has none, while the tracer is on. -1 with the error set; else of how many threads it is news that
// they have another one, which they keep, or had one for a while.
Py_ssize_t profile_threads();

// Whether the thread with this PyThreadState's id was seen to have another one in this tracing.
bool had_other_profile_function(uint64_t thread);

// Each thread once, until `work` says false: false then. Work may let other threads run, which may start and end: so the list is
// read anew after each.
template <typename Work>
bool each_thread(Work work) {
  std::vector<uint64_t> done;
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

// What was told of threads is forgotten: another tracing begins.
void forget_told_threads();

// For Python: a profile function that puts the native one in its own place.
PyObject* profile_this_thread(PyObject* module, PyObject* event);

// Takes it away from the calling thread, where others can't.
void unprofile_this_thread();

// Takes it away wherever it is set.
void unprofile_threads();

}  // namespace recfn
