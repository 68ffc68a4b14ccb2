// The one look at Python from an operator's thread: what is current there, by a reader written in Python.
#pragma once
#include "core/globals.hpp"
#include "cpython/python.hpp"

namespace recfn {

// Changes also when another look may find that the thread is to rest.
inline uint64_t version_with_sampling(const Globals& globals, uint64_t version) {
  return version << 1 | globals.sampled_alone.load(std::memory_order_relaxed);
}

// Changes with the thread's contextvars context.
inline uint64_t context_version_of(const Globals& globals, const PyThreadState* state) {
  return version_with_sampling(globals, state->context_ver);
}

}  // namespace recfn
