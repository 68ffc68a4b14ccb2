// The one look at Python from an operator's thread: what is current there, by a reader written in Python.
#pragma once
#include "core/globals.hpp"
#include "cpython/python.hpp"

namespace recfn {

// Changes with the thread's contextvars context, and when another look may find that the thread is to rest.
inline uint64_t context_version_of(const Globals& globals, const PyThreadState* state) {
  return state->context_ver << 1 | globals.sampled_alone.load(std::memory_order_relaxed);
}

int add_context_reader(PyObject* module);

}  // namespace recfn
