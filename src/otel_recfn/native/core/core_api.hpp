// What the recorder hands to the torch observer, a library of its own that is compiled on the user's machine.
//
// Both compile begin_end.hpp, so both must see the same structures: `layout` is compared before anything is touched.
#pragma once
#include "core/begin_end.hpp"

namespace recfn {

constexpr uint64_t kCoreApiVersion = 13;
constexpr uint64_t kCoreLayout =
    kCoreApiVersion << 56 | (sizeof(Globals) & 0xFFFFFFF) << 28 | (sizeof(ThreadBuffer) & 0xFFFFFFF);

struct CoreApi {
  uint64_t layout;
  Globals* globals;
  ThreadBuffer* (*thread_buffer)();  // the calling thread's; null in a dying thread
};

}  // namespace recfn
