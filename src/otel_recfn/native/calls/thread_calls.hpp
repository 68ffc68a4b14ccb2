// The calls that are open in a thread, and the Python object by which its profile function finds them.
#pragma once
#include "cpython/python.hpp"

#include <vector>

#include "core/thread_buffer.hpp"

namespace recfn {

constexpr size_t kNothingHidden = SIZE_MAX;

struct ThreadCalls {
  // Event ids, 0 where one isn't recorded; with kOfC for a C function's, with kHidden where its calls of C functions aren't shown.
  static constexpr uint64_t kOfC = uint64_t{1} << 63, kHidden = uint64_t{1} << 62;
  std::vector<uint64_t> stack;
  size_t hidden_from = kNothingHidden;  // how many calls are around the one below which nothing is shown
  size_t shown = 0;                     // how many of those that began while it traces are ranges
  PyThreadState* state = nullptr;       // the thread's, which has this as long as it lives
  ThreadBuffer* buffer = nullptr;       // null: the thread hasn't been met yet
  bool left_out = false;                // it isn't traced
};

// Living as long as a thread has it, that is, as long as it is traced.
struct ThreadCallsObject {
  PyObject_HEAD
  ThreadCalls* calls;
};

// A new reference; null with the error set.
PyObject* new_thread_calls();

// Those of every thread. Needs the GIL, as everything here.
const std::vector<ThreadCalls*>& all_thread_calls();

int add_thread_calls(PyObject* module);

}  // namespace recfn
