// Every thread's buffer, from its first range until the drain has seen its last, across threads'
// ends and forks.
#pragma once
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <vector>

#include "core/begin_end.hpp"

namespace recfn {

// Has the C++ runtime make now what it keeps of exceptions for the calling thread. It would do that
// at the thread's first throw, and where there is no memory for it then, the loader ends the
// process.
inline void prepare_for_exceptions() noexcept {
  [[maybe_unused]] volatile const int none = std::uncaught_exceptions();
}

// Begins, marks and memory reports that weren't recorded.
struct NotRecorded {
  uint64_t dropped = 0;    // there was no room, or no memory for a buffer
  uint64_t unsampled = 0;  // nobody wants what lies in the current span

  void add(const ThreadBuffer& buffer) {
    dropped += buffer.dropped.load(std::memory_order_relaxed);
    unsampled += buffer.unsampled.load(std::memory_order_relaxed);
  }
};

class Registry {
 public:
  // The calling thread's buffer, made on first use. Null in a thread whose destructors have run, or
  // that there was no memory for.
  ThreadBuffer* current();

  // The calling thread's buffer if it has one, else null.
  ThreadBuffer* existing() const;

  // The calling thread's number, which its buffer will have when it records; never given again.
  uint64_t thread_number();

  // A number of a thread's kind for what no thread begins; never given again.
  uint64_t new_number() { return next_number_.fetch_add(1); }

  // The live buffers and those of ended threads that were not retired yet.
  std::vector<ThreadBuffer*> snapshot();

  // Tells that thread, unless it is gone, that its Python calls are over. Returns the event id of
  // the one that is on no stack (begin_leaf); 0 where there is none.
  uint64_t end_calls(ThreadBuffer* buffer);

  // Frees the buffer of an ended thread, all of whose records were drained; its counts stay in the
  // totals.
  void retire(ThreadBuffer* buffer);

  // A buffer of its own number for rows of a thread that doesn't write them itself, by
  // `pthread_self` and the system's id (0: not known). Whoever asked writes it, and sets `ended`
  // then. Null without memory.
  ThreadBuffer* stand_in(uint64_t ident, uint64_t native_id);

  // The waker of the thread that drains.
  DrainWaker& waker();

  void set_buffer_bytes(uint64_t bytes);
  NotRecorded not_recorded();

  // Around fork(2), with the drain's lock held: the child starts empty, with the forking thread's
  // buffer alone.
  void before_fork() { mutex_.lock(); }
  void after_fork_in_parent() { mutex_.unlock(); }
  void after_fork_in_child();

 private:
  ThreadBuffer* create();

  std::mutex mutex_;
  std::vector<ThreadBuffer*> buffers_;
  std::atomic<uint64_t> next_number_{1};
  uint64_t buffer_bytes_ = 8u << 20;
  NotRecorded retired_;
};

Globals& globals();
Registry& registry();

}  // namespace recfn
