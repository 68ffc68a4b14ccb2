// The process's switches, which every begin reads.
//
// Compiled both into the recorder and into the torch observer, which compare the layout (CoreApi)
// before they touch it.
#pragma once
#include <atomic>
#include <cstdint>
#include <cstring>
#include <ctime>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "core/record.hpp"
#include "model/events.hpp"

// A thread_local that is read on the hot path: without a call, where the platform's loader allows
// it.
#if defined(__linux__)
#define RECFN_FAST_TLS __attribute__((tls_model("initial-exec")))
#else
#define RECFN_FAST_TLS
#endif

namespace recfn {

// What the task that runs in a thread sees: the current span, and its innermost open range.

struct Context {
  uint64_t trace_high = 0, trace_low = 0, span_id = 0, flags = 0;
  uint64_t enclosing = 0, root = 0;  // event ids of the range around, where it isn't on this
                                     // thread's stack, and of its outermost
  bool operator==(const Context& other) const {
    return std::memcmp(this, &other, sizeof *this) == 0;
  }
};

// Whether what begins in it becomes no span.
inline bool gets_no_spans(const Context& context) {
  if ((context.flags & kSuppressedContext) != 0) return true;
  return (context.trace_high | context.trace_low) != 0 && (context.flags & kSampledContext) == 0;
}

// What a thread hands on to the threads that work for it; PyTorch carries it there with its own
// thread-local state.
struct Launch {
  void* entry = nullptr;  // a TaskEntry, what the launching task is in; null: in nothing
  uint64_t task =
      0;  // stands for the launching task there, as a contextvars context does elsewhere
  uint64_t thread = 0;  // the number of the launching thread
};

constexpr uint64_t kLaunchedTask = uint64_t{1} << 63;  // no contextvars context has such a number

constexpr uint32_t kMaxTasks = 8;

struct TaskView {
  Context current;          // the span that is current
  bool has_latest = false;  // the task knows when that span became current, or has an open range
  uint64_t range = 0;     // event id of the innermost of these, where it began later than the span
  Context range_context;  // of that range, it and its root included
  uint64_t since_thread = 0,
           since_ordinal = 0;  // the later one began in this thread, after that many begins of it
  uint64_t tasks[kMaxTasks] = {},
           task_count =
               1;  // the contextvars contexts that are entered in the thread, the innermost first
};

// The wait of the drain, which a thread that writes much ends without a lock or an allocation, by
// one system call at most.
class DrainWaker {
 public:
  // The next wait, or the one under way, ends at once.
  void wake() {
    if (woken_.exchange(1) != 0) return;
#if defined(__linux__)
    syscall(SYS_futex, &woken_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
#endif
  }

  void wait(uint64_t timeout_ns) {
#if defined(__linux__)
    const timespec timeout = as_timespec(timeout_ns);
    if (woken_.load() == 0)
      syscall(SYS_futex, &woken_, FUTEX_WAIT_PRIVATE, 0, &timeout, nullptr, 0);
#else
    for (uint64_t slept = 0; slept < timeout_ns && woken_.load() == 0; slept += kSliceNs) {
      const timespec slice = as_timespec(kSliceNs);
      nanosleep(&slice, nullptr);
    }
#endif
    woken_.store(0);
  }

 private:
  static constexpr uint64_t kSliceNs = 20'000'000;

  static timespec as_timespec(uint64_t ns) {
    timespec time{};
    time.tv_sec = static_cast<time_t>(ns / 1'000'000'000u);
    time.tv_nsec = static_cast<long>(ns % 1'000'000'000u);
    return time;
  }

  std::atomic<uint32_t> woken_{0};
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "a futex is a word");
};

// Ends of ranges that began on another thread: a bounded queue, many producers, the drain its one
// consumer.
//
// Rare (asynchronous ranges only), so it is shared by all threads; still no lock and no allocation.

struct RemoteEnd {
  uint64_t key;
  uint64_t begin_thread_id;  // RecordFunction's; 0 where the key is an event id
  uint64_t ticks;
  uint64_t thread_number;  // of the thread that ended it
  uint32_t flags;
  uint32_t error_size = 0;
  char error[kMaxRemoteErrorBytes] = {};
};

class RemoteEnds {
 public:
  static constexpr uint64_t kCapacity = 4096;

  void push(RemoteEnd end, const char* error, uint32_t error_size) {
    uint64_t at = head_.load(std::memory_order_relaxed);
    do {
      const auto waiting = static_cast<int64_t>(
          at - tail_.load(std::memory_order_acquire));  // negative: others were faster
      if (waiting >= int64_t{kCapacity}) return void(lost_.fetch_add(1, std::memory_order_relaxed));
    } while (!head_.compare_exchange_weak(at, at + 1, std::memory_order_relaxed));
    Cell& cell = cells_[at % kCapacity];
    end.error_size = cut_at_character(error, error_size, sizeof end.error);
    if (end.error_size != 0) std::memcpy(end.error, error, end.error_size);
    cell.end = end;
    cell.is_written.store(true, std::memory_order_release);
  }

  // The oldest end, until pop(); null when there is none.
  const RemoteEnd* front() const {
    const Cell& cell = cells_[tail_.load(std::memory_order_relaxed) % kCapacity];
    return cell.is_written.load(std::memory_order_acquire) ? &cell.end : nullptr;
  }

  void pop() {
    cells_[tail_.load(std::memory_order_relaxed) % kCapacity].is_written.store(
        false, std::memory_order_relaxed);
    tail_.fetch_add(1, std::memory_order_release);
  }

  uint64_t lost() const { return lost_.load(std::memory_order_relaxed); }

 private:
  struct Cell {
    std::atomic<bool> is_written{false};
    RemoteEnd end;
  };
  std::atomic<uint64_t> head_{0}, tail_{0}, lost_{0};
  Cell cells_[kCapacity];
};

struct ThreadBuffer;

// Owned by registry.cpp.
struct Globals {
  // Bit per selected scope and kRecordingBit while recording; kObservedBit while a range observer
  // is set.
  std::atomic<uint32_t> recording{0};
  std::atomic<uint32_t> generation{1};  // one per start after a stop
  std::atomic<uint8_t> sampled_alone{
      0};  // 1 (a bit of context versions): nobody wants what lies in a span that is not sampled
  bool use_cycle_counter = false;
  double ns_per_tick = 1;  // about: as it was measured when the first recording began
  std::atomic<uint32_t> short_way{UINT32_MAX};  // `generation`, while calls may begin the short way
                                                // (begin_known_call); else none
  std::atomic<uint64_t> dropped_without_buffer{
      0};  // begins in threads that got no buffer, for want of memory
  // Bindings: what changes with what the calling thread's task sees (no GIL needed); where it has
  // changed, whether other tasks may have run; and what the task sees (both may take the GIL).
  std::atomic<uint64_t (*)(const ThreadBuffer&)> context_version{nullptr};
  std::atomic<bool (*)()> may_have_been_suspended{nullptr};
  std::atomic<void (*)(ThreadBuffer&, TaskView&)> read_context{nullptr};
  // Torch observer: the launch that PyTorch's state of the calling thread has, null where it has
  // none; and a change of it, which returns an entry that nobody needs any more.
  std::atomic<const Launch* (*)()> launch{nullptr};
  std::atomic<void* (*)(void*& carried, const Launch&)> hand_on{nullptr};
  // Bindings: hands on what the thread has `to_hand_on`; gives a launch's entry back. Need no GIL.
  std::atomic<void (*)(ThreadBuffer&)> hand_on_now{nullptr};
  std::atomic<void (*)(void*)> let_go{nullptr};
  // Torch observer: how many frames TorchScript's interpreter has in the calling thread.
  std::atomic<uint64_t (*)()> torchscript_frames{nullptr};
  std::atomic<bool> frames_move{
      false};  // a TorchScript function has run in a thread that works for another
  // Torch observer: RecordFunction's logical id of the calling thread, the default node id and its
  // change, and a thread's farewell.
  std::atomic<uint64_t (*)()> logical_thread_id{nullptr};
  std::atomic<int64_t (*)()> default_node_id{nullptr};
  std::atomic<void (*)(int64_t)> set_default_node_id{nullptr};
  std::atomic<int64_t> node_id{-1};  // what the program told us
  std::atomic<void (*)(ThreadBuffer&)> on_thread_exit{nullptr};
  // Torch observer: PyTorch's switch of the calling thread, which is the thread's one switch once
  // PyTorch is observed.
  std::atomic<bool (*)()> is_enabled{nullptr};
  std::atomic<void (*)(bool)> enable{nullptr};
  // Torch observer, while a profiler run is active: the run that PyTorch's thread-local state says
  // the calling thread works for.
  std::atomic<uint32_t (*)()> read_profiler{nullptr};
  std::atomic<uint32_t> extras{0};  // Extra
  // Bindings: the calling thread's Python stack as text of at most `size` bytes; takes the GIL.
  std::atomic<uint32_t (*)(char* text, uint32_t size)> read_stack{nullptr};
  RemoteEnds remote_ends;
};
constexpr uint32_t kRecordingBit = 1u << 31;
constexpr uint32_t kObservedBit =
    1u << 30;  // record_function asks its range observer, recording or not
constexpr uint32_t kStackBit = 1u << 29;  // ranges carry their stack

// After a change of what it depends on, so that calls read one number for all of that.
inline void turn_short_way(Globals& globals) {
  const bool recording = (globals.recording.load() & kRecordingBit) != 0;
  const bool has_contexts = globals.context_version.load() != nullptr;
  const bool is_open = recording && has_contexts && globals.use_cycle_counter;
  globals.short_way.store(is_open ? globals.generation.load() : UINT32_MAX);
}

}  // namespace recfn
