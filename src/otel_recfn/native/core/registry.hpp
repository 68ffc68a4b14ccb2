// Every thread's buffer, from its first range until the drain has seen its last, across threads'
// ends and forks.
//
//     first range        create     maps the buffer, tells pthread of it, lists it
//         │
//     records            current    finds it in a thread_local, without a lock
//         │
//     the thread ends    on_thread_end, by pthread, after C++'s thread_locals: `ended`
//         │
//     a drain has read its last record, and nothing of it is open
//                        retire     adds its counts to the totals and frees it
//
//     fork(2)            the child frees the buffers of threads that it hasn't got, and empties the
//                        forking thread's, whose records the parent drains
//
// The drain works on a copy of the list (`snapshot`), and is the only one that retires: a buffer in
// its copy lives until the drain itself frees it.
#pragma once
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "core/globals.hpp"
#include "core/thread_buffer.hpp"

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
    dropped += buffer.counts.dropped.load(std::memory_order_relaxed);
    unsampled += buffer.counts.unsampled.load(std::memory_order_relaxed);
  }
};

// Of that number: one of 64, which may be another thread's, too.
inline uint64_t thread_bit(uint64_t number) { return uint64_t{1} << (number % 64); }

class Registry {
 public:
  // The calling thread's buffer, made on first use. Null in a thread whose destructors have run, or
  // that there was no memory for.
  ThreadBuffer* current();

  // The calling thread's buffer if it has one, else null.
  ThreadBuffer* existing() const;

  // The calling thread's number, which its buffer will have when it records; never given again.
  uint64_t thread_number();

  // RecordFunction's logical id of the calling thread, as long as it lives: PyTorch's where that
  // numbers threads by the time of the first call, else the thread's number.
  uint64_t logical_id();

  // From now on PyTorch numbers threads, by that function.
  void follow_torch(uint64_t (*logical_thread_id)());

  // Notes what PyTorch, which numbers threads, calls the calling one, whose buffer that is.
  void note_torchs_id(ThreadBuffer& buffer);

  // The logical id of the thread that PyTorch calls so.
  uint64_t logical_id_of(uint64_t torchs_id);

  // A number of a thread's kind for what no thread begins; never given again.
  uint64_t new_number() { return next_number_.fetch_add(1); }

  // The live buffers and those of ended threads that were not retired yet.
  std::vector<ThreadBuffer*> snapshot();

  // Tells that thread, unless it is gone, that its Python calls are over.
  void end_calls(ThreadBuffer* buffer);

  // Has the threads whose bits these are (`thread_bit`) refresh their contexts at their next begin.
  void refresh_contexts(uint64_t threads);

  // Frees the buffer of an ended thread, all of whose records were drained; its counts stay in the
  // totals.
  void retire(ThreadBuffer* buffer);

  // A buffer of its own number for rows of a thread that doesn't write them itself, by
  // `pthread_self` and the system's id (0: not known). Whoever asked writes it, and sets `ended`
  // then. Null without memory.
  ThreadBuffer* blocked_buffer(uint64_t ident, uint64_t native_id);

  // The waker of the thread that drains.
  DrainWaker& waker();

  void set_buffer_bytes(uint64_t bytes);
  NotRecorded not_recorded();

  // Around fork(2), with the drain's lock held: the child starts empty, with the forking thread's
  // buffer alone.
  void before_fork();
  void after_fork_in_parent();
  void after_fork_in_child();

 private:
  ThreadBuffer* create();
  void identify(ThreadBuffer& buffer);
  uint64_t own_id(uint64_t number);
  void note_other_id(uint64_t torchs_id, uint64_t logical_id);

  std::mutex mutex_;  // of what follows; `ids_mutex_` is taken inside it, never the other way
  std::vector<ThreadBuffer*> buffers_;
  std::atomic<uint64_t> next_number_{1};
  uint64_t buffer_bytes_ = 8u << 20;
  NotRecorded retired_;
  std::mutex ids_mutex_;      // of what follows
  uint64_t last_own_id_ = 0;  // the largest number that is a thread's logical id
  std::unordered_map<uint64_t, uint64_t> other_ids_;  // those that aren't PyTorch's, by PyTorch's
  std::atomic<bool> has_other_ids_{false};
};

// Each range in Python asks for them some ten times. In the header the question is one comparison;
// as calls these were 5 % of the instructions of such a range.
inline Globals& globals() {
  static Globals instance;
  return instance;
}

inline Registry& registry() {
  // Never destroyed: threads may outlive static destructors.
  static Registry* const instance = new Registry;
  return *instance;
}

}  // namespace recfn
