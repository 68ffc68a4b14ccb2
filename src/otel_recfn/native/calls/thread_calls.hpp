// The calls that are open in a thread.
#pragma once
#include "cpython/python.hpp"

#include <atomic>
#include <vector>

#include "calls/call_stack.hpp"
#include "core/globals.hpp"
#include "core/thread_buffer.hpp"

namespace recfn {

constexpr size_t kNothingHidden = SIZE_MAX;
constexpr uint64_t kNotMet = UINT64_MAX;

struct ThreadCalls {
  // Entries are event ids, 0 where one isn't recorded; with kOfC for a C function's, with kHidden where its calls of C functions
  // aren't shown.
  static constexpr uint64_t kHidden = uint64_t{1} << 63, kOfC = uint64_t{1} << 62;
  CallStack stack;
  size_t hidden_from = kNothingHidden;  // how many calls are around the one below which nothing is shown; the stack is shut
  size_t shown = 0;                     // how many of those that began while it traces are ranges
  ThreadBuffer* buffer = nullptr;       // the thread's own, from its first meeting until it ends: nobody takes it away meanwhile
  uint64_t tracing = 0;                 // while which it was told of
  uint64_t met_in = kNotMet;            // the tracing that has met it
  uint64_t thread = 0;                  // the id of its PyThreadState, once somebody asked whether it is to be traced
  uint64_t gave_way_at = UINT64_MAX;    // up to where the drain had read when the thread last waited for it
  bool left_out = false;                // it isn't traced
  bool stands_for_another = false;      // the buffer isn't the thread's own, but stands for another one
  std::atomic<bool> ended{false};

  void hide_below() { hidden_from = stack.size(), stack.shut(); }
  void show_again() { hidden_from = kNothingHidden, stack.open(); }

  void forget() {
    stack.clear(), show_again();
    shown = 0, met_in = kNotMet, left_out = false;
  }
};

extern thread_local ThreadCalls* tls_calls RECFN_FAST_TLS;

// Of the calling thread, emptied where it is of an earlier time; null without memory. Needs the GIL.
ThreadCalls* thread_calls(uint64_t tracing);

// Those of every thread that lives. Needs the GIL.
const std::vector<ThreadCalls*>& all_thread_calls();

// In a forked child: frees those of the parent's other threads.
void forget_other_threads();

}  // namespace recfn
