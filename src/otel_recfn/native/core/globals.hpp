// The process's switches, which every begin reads.
//
// Compiled both into the recorder and into the torch observer, which compare the layout (CoreApi)
// before they touch it.
#pragma once
#include <atomic>
#include <cstdint>
#include <cstring>

#include "core/record.hpp"
#include "core/remote_ends.hpp"
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
  // Event ids of the range around, where the stack doesn't tell it, and of that one's outermost in
  // the same span. Without a root the span lies in the range, not the range in the span.
  uint64_t enclosing = 0, root = 0;
  bool operator==(const Context& other) const {
    return std::memcmp(this, &other, sizeof *this) == 0;
  }
};

// Whether what begins in it becomes no span.
inline bool gets_no_spans(const Context& context) {
  if ((context.flags & kSuppressedContext) != 0) return true;
  return (context.trace_high | context.trace_low) != 0 && (context.flags & kSampledContext) == 0;
}

// What a thread propagates to the threads that work for it; PyTorch carries it there with its own
// thread-local state.
struct PropagatedContext {
  void* entry = nullptr;  // a TaskEntry, what the launching task is in; null: in nothing
  // Stands for the launching task there, as a contextvars context does elsewhere.
  uint64_t task = 0;
  uint64_t thread = 0;  // the number of the launching thread
};

constexpr uint64_t kPropagatedTask = uint64_t{1} << 63;  // no contextvars context has such a number

constexpr uint32_t kMaxTasks = 8;

struct TaskView {
  Context current;          // the span that is current
  bool has_latest = false;  // the task knows when that span became current, or has an open range
  uint64_t range = 0;     // event id of the innermost of these, where it began later than the span
  Context range_context;  // of that range, it and its root included
  // The later one began in this thread, after that many begins of it.
  uint64_t since_thread = 0, since_ordinal = 0;
  // The contextvars contexts that are entered in the thread, the innermost first.
  uint64_t tasks[kMaxTasks] = {};
  uint64_t task_count = 1;
};

struct ThreadBuffer;

// The end of a range of PyTorch's that an exception leaves.
struct FailedEnd {
  uint64_t key;
  uint64_t begin_thread_id;
  uint32_t flags;
  int64_t cpu_time_ns = -1;
  // Python code handles the exception, so that Python has it; else it is in flight.
  bool is_handled = false;
};

// What the recorder calls in its half that knows Python (python/recorder_hooks.cpp).
struct RecorderHooks {
  // What the calling thread's task sees. May take the GIL. Null while nobody reads contexts.
  void (*read_context)(ThreadBuffer&, TaskView&) = nullptr;
  // Whether other tasks may have run in the thread, where that version has changed. May take the
  // GIL.
  bool (*may_have_been_suspended)() = nullptr;
  // A number for the exception that the calling thread's Python code handles, 0 for none. Needs no
  // GIL.
  uint32_t (*handled_exception)() = nullptr;
  // The end of a range that an exception leaves, with what Python says of that one. May take the
  // GIL.
  void (*end_failed)(ThreadBuffer&, const FailedEnd&) = nullptr;
  // Propagates the thread's pending entry; drops a reference to an entry. Need no GIL.
  void (*propagate_now)(ThreadBuffer&) = nullptr;
  void (*release)(void*) = nullptr;
  // Notes what PyTorch calls the thread.
  void (*note_torchs_id)(ThreadBuffer&) = nullptr;
  // The calling thread's Python stack as text of at most `size` bytes. Takes the GIL.
  uint32_t (*read_stack)(char* text, uint32_t size) = nullptr;
};

// What the recorder calls in the torch observer; each is null without the observer.
struct ObserverHooks {
  // Changes what PyTorch's state of the calling thread propagates. Returns an entry that nobody
  // needs any more.
  void* (*set_propagated)(void*& carrier, const PropagatedContext&) = nullptr;
  // How many frames TorchScript's interpreter has in the calling thread.
  uint64_t (*torchscript_frames)() = nullptr;
  // The default node id, and its change.
  int64_t (*default_node_id)() = nullptr;
  void (*set_default_node_id)(int64_t) = nullptr;
  void (*on_thread_exit)(ThreadBuffer&) = nullptr;
  // Changes PyTorch's switch of the calling thread.
  void (*enable)(bool) = nullptr;
  // The profiler run that PyTorch's state says the calling thread works for. Null while none is
  // active.
  uint32_t (*read_profiler)() = nullptr;
};

inline constexpr RecorderHooks kNoRecorderHooks;
inline constexpr ObserverHooks kNoObserverHooks;

// Owned by registry.cpp.
struct Globals {
  // Bit per selected scope and kRecordingBit while recording; kObservedBit while a range observer
  // is set.
  std::atomic<uint32_t> recording{0};
  std::atomic<uint32_t> epoch{1};  // one per start after a stop
  // 1 (a bit of context versions): nobody wants what lies in a span that is not sampled.
  std::atomic<uint8_t> sampled_alone{0};
  bool use_cycle_counter = false;
  double ns_per_tick = 1;  // about: as it was measured when the first recording began
  // Begins in threads that got no buffer, for want of memory.
  std::atomic<uint64_t> dropped_without_buffer{0};
  std::atomic<const RecorderHooks*> recorder{&kNoRecorderHooks};
  std::atomic<const ObserverHooks*> observer{&kNoObserverHooks};

  // The hooks below are here and in neither table, since each begin below Python calls one or more
  // of them: the second load, which waits for the first, cost an operator 1 ns.

  // What changes with what the calling thread's task sees (the recorder's; null while nobody reads
  // it).
  std::atomic<uint64_t (*)(const ThreadBuffer&)> context_version{nullptr};
  // What PyTorch's state of the calling thread propagates, null where it has none (the observer's).
  std::atomic<const PropagatedContext* (*)()> propagated{nullptr};
  // PyTorch's switch of the calling thread, the thread's one switch once PyTorch is observed (the
  // same).
  std::atomic<bool (*)()> is_enabled{nullptr};
  // A TorchScript function has run in a thread that works for another.
  std::atomic<bool> frames_move{false};
  // PyTorch's logical id of the calling thread, once PyTorch numbers threads, with or without the
  // observer.
  std::atomic<uint64_t (*)()> logical_thread_id{nullptr};
  std::atomic<int64_t> node_id{-1};  // as the program has set it
  std::atomic<uint32_t> extras{0};   // Extra
  RemoteEnds remote_ends;
};

inline const RecorderHooks& recorder_hooks(const Globals& globals) {
  return *globals.recorder.load(std::memory_order_acquire);
}
inline const ObserverHooks& observer_hooks(const Globals& globals) {
  return *globals.observer.load(std::memory_order_acquire);
}

constexpr uint32_t kRecordingBit = 1u << 31;
// record_function asks its range observer, recording or not.
constexpr uint32_t kObservedBit = 1u << 30;
constexpr uint32_t kStackBit = 1u << 29;  // ranges carry their stack

}  // namespace recfn
