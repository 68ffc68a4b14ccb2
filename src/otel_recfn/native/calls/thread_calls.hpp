// The calls that are open in each thread.
#pragma once
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/globals.hpp"
#include "core/thread_buffer.hpp"
#include "cpython/python.hpp"

namespace recfn {

struct OpenCall {
  uint64_t entry;  // as ThreadCalls says
  // Of a Python call, which tells it from other open ones: CPython's frame or its frame object; of
  // C's null.
  const void* frame;
};

// A thread's stack of open calls, which takes as many as the one of its open ranges. Memory becomes
// of it what is used.
class CallStack {
 public:
  CallStack() : first_(new OpenCall[kMaxDepth + 1]) { first_[0] = {0, this}; }

  bool empty() const { return size() == 0; }
  size_t size() const { return static_cast<size_t>(end_ - first_.get()) - 1; }
  bool is_full() const { return end_ == limit(); }

  // Whether it is open to calls that begin the short way, and has room for one: one comparison for
  // both.
  bool takes_fast_path() const { return end_ < gate_; }
  void open() { gate_ = limit(); }
  void shut() { gate_ = nullptr; }

  // Where none is open, one that is no call: neither of C nor of any frame.
  OpenCall& back() { return end_[-1]; }
  const OpenCall& back() const { return end_[-1]; }
  OpenCall& operator[](size_t at) { return first_[at + 1]; }

  // To be called where it isn't full.
  void push(OpenCall call) { *end_++ = call; }
  // To be called where it isn't empty.
  void pop() { --end_; }
  void clear() { end_ = &first_[1]; }

 private:
  OpenCall* limit() const { return first_.get() + kMaxDepth + 1; }

  const std::unique_ptr<OpenCall[]> first_;
  OpenCall* end_ = &first_[1];
  OpenCall* gate_ = limit();  // null while it is shut
};

constexpr size_t kNothingHidden = SIZE_MAX;
constexpr uint64_t kNotMet = UINT64_MAX;

struct ThreadCalls {
  // Entries are event ids, 0 where one isn't recorded; with kCFunction for a C function's, with
  // kHidden where its calls of C functions aren't shown.
  static constexpr uint64_t kHidden = uint64_t{1} << 63;
  static constexpr uint64_t kCFunction = uint64_t{1} << 62;
  CallStack stack;
  // How many calls are around the one below which nothing is shown; the stack is shut.
  size_t hidden_from = kNothingHidden;
  size_t depth = 0;  // how many of those that began while it traces are ranges
  // The thread's own, from its first meeting until it ends: nobody takes it away meanwhile.
  ThreadBuffer* buffer = nullptr;
  uint64_t tracing = 0;       // while which it was told of
  uint64_t met_in = kNotMet;  // the tracing that has met it
  // The id of its PyThreadState, once somebody asked whether it is to be traced.
  uint64_t thread = 0;
  // Up to where the drain had read when the thread last waited for it.
  uint64_t yielded_at = UINT64_MAX;
  uint64_t forks = 0;      // of the process in which its thread lives
  bool left_out = false;   // it isn't traced
  bool were_open = false;  // those that were open as the thread was met are begun now
  std::atomic<bool> ended{false};

  void hide_callees() {
    hidden_from = stack.size();
    stack.shut();
  }

  void unhide_callees() {
    hidden_from = kNothingHidden;
    stack.open();
  }

  void forget() {
    stack.clear();
    unhide_callees();
    depth = 0;
    met_in = kNotMet;
    left_out = false;
  }
};

inline thread_local ThreadCalls* tls_calls RECFN_FAST_TLS = nullptr;

// Of every thread that lives. Needs the GIL.
class AllThreadCalls {
 public:
  // Of the calling thread, emptied where it is of an earlier time; null without memory.
  ThreadCalls* own(uint64_t tracing) {
    if (tls_calls == nullptr) had_memory_for([this] { tls_calls = make(); });
    if (tls_calls != nullptr && tls_calls->tracing != tracing) {
      tls_calls->forget();
      tls_calls->tracing = tracing;
    }
    return tls_calls;
  }

  const std::vector<std::unique_ptr<ThreadCalls>>& all() {
    free_unless([](const auto& calls) { return !calls->ended.load(std::memory_order_acquire); });
    return known_;
  }

  // In a forked child, by pthread_atfork: of the parent's threads only the calling one goes on.
  void after_fork_in_child() {
    ++forks_;
    if (tls_calls != nullptr) tls_calls->forks = forks_;
  }

  // In a forked child, in any thread of it: frees those of the parent's threads that aren't here.
  void forget_parents_threads() {
    free_unless([this](const auto& calls) { return calls->forks == forks_; });
  }

 private:
  ThreadCalls* make() {
    all();
    known_.push_back(std::make_unique<ThreadCalls>());
    known_.back()->forks = forks_;
    if (ends_with_thread(known_.back().get())) return known_.back().get();
    known_.pop_back();
    return nullptr;
  }

  static bool ends_with_thread(ThreadCalls* calls) {
    static pthread_key_t key;
    static const bool made = pthread_key_create(&key, on_thread_end) == 0;
    return made && pthread_setspecific(key, calls) == 0;
  }

  // Without the GIL: only noted here, and freed by who has it.
  static void on_thread_end(void* calls) {
    tls_calls = nullptr;
    static_cast<ThreadCalls*>(calls)->ended.store(true, std::memory_order_release);
  }

  template <typename Predicate>
  void free_unless(Predicate is_live) {
    known_.erase(std::partition(known_.begin(), known_.end(), is_live), known_.end());
  }

  std::vector<std::unique_ptr<ThreadCalls>> known_;
  uint64_t forks_ = 0;  // in this process and in those that it was forked from
};

// Never destroyed: threads may end after it would be.
inline AllThreadCalls& thread_calls() {
  static auto* instance = new AllThreadCalls;
  return *instance;
}

}  // namespace recfn
