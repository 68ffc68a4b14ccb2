// What the observer's callbacks share: the recorder that it was tied to, and the calling thread's buffer there.
#pragma once
#include <c10/macros/Macros.h>

#include "core/core_api.hpp"
#include "core/fast_tls.hpp"

namespace recfn {
namespace {

// The calling thread's buffer, as the recorder gave it; forgotten when the recorder says that the thread ends.
thread_local ThreadBuffer* cached_buffer RECFN_FAST_TLS = nullptr;

const CoreApi* core = nullptr;
Globals* shared = nullptr;

[[gnu::noinline]] ThreadBuffer* first_buffer() { return cached_buffer = core->thread_buffer(); }

// Null in a dying thread, and in one that there was no memory for.
ThreadBuffer* buffer_of_thread() { return C10_LIKELY(cached_buffer != nullptr) ? cached_buffer : first_buffer(); }

}  // namespace
}  // namespace recfn
