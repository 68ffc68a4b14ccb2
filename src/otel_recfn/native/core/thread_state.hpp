// What a thread that records has: its ring, its stack of open ranges, its name dictionary; and the process's switches.
//
// Compiled both into the recorder and into the torch observer, which compare the layout (core_api.hpp) before they touch it.
#pragma once
#include <atomic>
#include <cstdint>
#include <cstring>

#include "core/drain_waker.hpp"
#include "core/record.hpp"
#include "core/remote_ends.hpp"

namespace recfn {

struct Context {
  uint64_t trace_high = 0, trace_low = 0, span_id = 0, flags = 0;
  uint64_t enclosing = 0, root = 0;  // event ids of the range around, where it isn't on this thread's stack, and of its outermost
  bool operator==(const Context& other) const { return std::memcmp(this, &other, sizeof *this) == 0; }
};

struct ThreadBuffer;

constexpr uint32_t kMaxTasks = 8;

// What the task that runs in a thread sees.
struct TaskView {
  Context current;          // the span that is current
  bool has_latest = false;  // the task knows when that span became current, or has an open range
  uint64_t range = 0;       // event id of the innermost of these, where it began later than the span
  Context range_context;    // of that range, it and its root included
  uint64_t since_thread = 0, since_ordinal = 0;     // the later one began in this thread, after that many begins of it
  uint64_t tasks[kMaxTasks] = {}, task_count = 1;  // the contextvars contexts that are entered in the thread, the innermost first
};

// The whole process's switches. Owned by registry.cpp, read by every begin.
struct Globals {
  // Bit per selected scope and kRecordingBit while recording; kObservedBit while a range observer is set.
  std::atomic<uint32_t> recording{0};
  std::atomic<uint32_t> generation{1};  // one per start after a stop
  bool use_cycle_counter = false;
  std::atomic<uint64_t> dropped_without_buffer{0};  // begins in threads that got no buffer, for want of memory
  // Bindings: the contextvars version of the calling thread (no GIL needed), and what its task sees (takes the GIL).
  std::atomic<uint64_t (*)()> context_version{nullptr};
  std::atomic<void (*)(ThreadBuffer&, TaskView&)> read_context{nullptr};
  // Torch observer: RecordFunction's logical id of the calling thread, the default node id, and a thread's farewell.
  std::atomic<uint64_t (*)()> logical_thread_id{nullptr};
  std::atomic<int64_t (*)()> default_node_id{nullptr};
  std::atomic<int64_t> own_node_id{-1};  // what the program set in Python; -1: PyTorch's, where it is observed
  std::atomic<void (*)()> on_thread_exit{nullptr};
  // Torch observer, while a profiler run is active: the run that PyTorch's thread-local state says the calling thread works for.
  std::atomic<uint32_t (*)()> read_profiler{nullptr};
  std::atomic<uint32_t> extras{0};  // Extra
  // Bindings: the calling thread's Python stack as text of at most `size` bytes; takes the GIL.
  std::atomic<uint32_t (*)(char* text, uint32_t size)> read_stack{nullptr};
  RemoteEnds remote_ends;
};
constexpr uint32_t kRecordingBit = 1u << 31;
constexpr uint32_t kObservedBit = 1u << 30;  // record_function asks its range observer, recording or not
constexpr uint32_t kStackBit = 1u << 29;     // ranges carry their stack

struct Text {
  const char* data = nullptr;
  uint32_t size = 0;
};

// What few ranges have, or only when somebody asked for it; written before the begin.
struct RareExtras {
  Text module, stack;
  Text shapes_text, dtypes_text;
  const uint64_t* shapes = nullptr;
  uint32_t shape_words = 0;
  int64_t flops = 0;
};

struct Extras {
  int64_t debug_handle = -1;
  const RareExtras* rare = nullptr;
};

struct Begin {
  Text name;
  uint64_t handle = 0;  // RecordFunction's, by which its end finds it; other sources use the event id
  int64_t sequence_nr = -1;
  uint64_t forward_thread_id = 0;
  uint32_t scope = 0;
  uint32_t flags = 0;      // EventFlag | source << kSourceShift
  bool has_numbers = false;  // handle and sequence_nr are worth writing (torch's always are)
  Extras extras;
};

struct OpenEntry {
  uint64_t key;
  uint64_t ordinal : 60;  // 0: the begin was not recorded
  uint64_t async : 1;     // no parent by its place on the stack
  uint64_t entered : 1;   // a range of Python's: the task says whether it is in it
  uint64_t python : 1;    // Python may run inside it, directly
  uint64_t base : 1;      // begun with kBaseBegin
  uint64_t task;          // the contextvars context in which it began
};

struct NameSlot {
  uint64_t hash;
  uint64_t size_plus_one;  // 0: empty
};

// Keys of ranges that another thread ended, told by the drain to the thread that still has them on its stack.
struct ClosedElsewhere {
  static constexpr uint32_t kCapacity = 64;
  std::atomic<uint32_t> head{0}, tail{0};
  uint64_t keys[kCapacity];

  bool push(uint64_t key) {
    const uint32_t at = head.load(std::memory_order_relaxed);
    if (at - tail.load(std::memory_order_acquire) == kCapacity) return false;
    keys[at % kCapacity] = key;
    head.store(at + 1, std::memory_order_release);
    return true;
  }
};

// From a position on, a thread's records lie here. Of a thread's rings the last is written.
struct Ring {
  uint64_t* words;
  uint64_t capacity;  // in words, a power of two
  uint64_t from;
};

constexpr uint32_t kMaxRings = 8;

struct SharedByRings {
  std::atomic<uint64_t> total_bytes{0};
  DrainWaker waker;
};

enum Unsent : uint8_t { kContextUnsent = 1, kProfilerUnsent = 2, kParentUnsent = 4 };

// What a begin lies in that finds on the stack what the last look found.
enum ParentKind : uint8_t { kByContext, kByPlace, kByOrdinal };

constexpr uint32_t kNoGeneration = 0;

struct ThreadBuffer {
  // The producer's own.
  uint64_t* words = nullptr;  // of the ring that is written
  uint64_t capacity = 0;
  uint64_t head = 0;
  uint64_t limit = 0;  // as far as is known there is room up to this position
  uint32_t depth = 0;
  uint32_t floor = 0;          // stack entries below it belong to an earlier recording
  uint32_t open_recorded = 0;  // each has kEndWords reserved
  uint32_t untracked = 0;      // dropped begins of torch that found the stack full
  uint32_t generation = 0;
  bool context_stale = true;
  bool has_logical_id = false;
  bool muted = false;  // `generation` is kNoGeneration meanwhile, `muted_generation` what it was
  uint8_t unsent = 0;  // Unsent
  uint32_t muted_generation = 0;
  uint32_t profiler = 0;       // the run that this thread was told to work for
  uint32_t profiler_sent = 0;  // the run that the ring's last Profiler record names
  bool name_noted = false;
  uint64_t context_version = 0;
  uint64_t name_seed = 0;
  // The last look: entries from look_depth on began since, in the same task.
  uint32_t look_depth = 0;
  ParentKind look_parent = kByContext;
  uint64_t look_ordinal = 0;    // kByOrdinal: of the parent
  uint64_t parent_ordinal = 0;  // unsent: of the next begin's parent
  uint64_t task = 0;
  Context context;  // as the ring's last Context record has it, or will
  std::atomic<uint64_t> ordinal{0};  // begins recorded
  std::atomic<uint64_t> dropped{0};
  std::atomic<uint64_t> shortened{0};  // begins recorded without what there was no room for, their name for instance
  uint64_t max_capacity = 0;
  uint64_t woken_at = UINT64_MAX;  // up to where the drain had read when it was last woken
  SharedByRings* shared = nullptr;
  // Shared with the drain.
  alignas(64) std::atomic<uint64_t> published{0};
  alignas(64) std::atomic<uint64_t> consumed{0};
  ClosedElsewhere closed_elsewhere;
  std::atomic<bool> ended{false};
  Ring rings[kMaxRings] = {};
  std::atomic<uint32_t> num_rings{0};
  bool met = false;          // the drain's own: it knows this thread
  uint32_t oldest_ring = 0;  // the drain's own: those before it are gone
  std::atomic<uint64_t> thread_id{0};
  uint64_t number = 0, native_id = 0, ident = 0;
  OpenEntry stack[kMaxDepth];
  NameSlot names[kNameSlots];

  void put(uint64_t word) { words[head++ & (capacity - 1)] = word; }

  void put_text(Text text) {
    for (uint32_t at = 0; at < text.size; at += 8) {
      uint64_t word = 0;
      std::memcpy(&word, text.data + at, text.size - at < 8 ? text.size - at : 8);
      put(word);
    }
  }

  bool has_room(uint64_t count) {
    return head + count <= limit || find_room(count);
  }

  bool find_room(uint64_t count);  // ring_growth.hpp

  // Writes `count` words and publishes them with all that was put before. The members are read once: what is stored into the
  // ring could alias them, as far as the compiler knows.
  template <uint32_t count>
  void put_and_publish(const uint64_t (&record)[count]) {
    uint64_t* const ring = words;
    const uint64_t mask = capacity - 1, at = head;
    for (uint32_t index = 0; index < count; ++index) ring[(at + index) & mask] = record[index];
    head = at + count;
    published.store(at + count, std::memory_order_release);
  }
};

}  // namespace recfn
