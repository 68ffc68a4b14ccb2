// What a thread that records has: its ring, its stack of open ranges, its name dictionary.
//
//     part of ThreadBuffer       what it is for                           who writes it
//     ------------------------   --------------------------------------   ----------------------
//     ring, growth               where the next record goes, and when a   its thread
//                                larger ring is needed
//     reading                    how far records are published and read   its thread: `published`,
//                                                                         rings; drain: `consumed`
//     open, stack                the open ranges, the innermost on top    its thread
//     refresh                    the parent that the last context         its thread; `stale` also
//                                refresh found (parents/parents.hpp)      threads that end a range
//     recording, preceding       what the records before the next begin   its thread
//                                have to say (recording/prelude.hpp)
//     ended_by_others            ranges on the stack that another         drain
//                                thread ended
//     propagation                what PyTorch's threads that work for     its thread
//                                this one get (tasks/propagation.cpp)
//     cpu                        the CPU time, as it was last read        its thread
//     names                      which names the drain knows, by slot     its thread
//     identity, counts           the thread's numbers; lost begins        its thread
//
// Each is written without a lock. What two threads touch is atomic, and says at its use which store
// releases and which load acquires. A fork stops both: the child begins with empty buffers.
//
// Compiled both into the recorder and into the torch observer, which compare the layout (CoreApi)
// before they touch it.
#pragma once
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/drain_waker.hpp"
#include "core/globals.hpp"
#include "core/record.hpp"

namespace recfn {

// An open range.
//
//   word   63     57 56        44 43       40 39                     0
//          | bits   | handled    | in flight | ordinal               |
//
// The ordinal and the bits are one word, which is written as one. After the store of a part (of a
// bit field, say) the load of the whole waits for it: that cost each Python call 8 ns. Between them
// stands, of a recorded range of PyTorch's, which exceptions there were as it began, since none of
// these is what it is left by.
struct OpenEntry {
  static constexpr uint32_t kInFlightShift = kOrdinalBits;
  static constexpr uint32_t kMaxInFlight = 15;
  static constexpr uint32_t kHandledShift = kInFlightShift + 4;
  static constexpr uint32_t kHandledBits = 13;
  // A Python call that was open as its thread was met.
  static constexpr uint64_t kEarlierBit = uint64_t{1} << 57;
  // A frame of TorchScript's that went on in another thread.
  static constexpr uint64_t kMovedBit = uint64_t{1} << 58;
  static constexpr uint64_t kFrameBit = uint64_t{1} << 59;  // a frame of TorchScript's
  static constexpr uint64_t kAsyncBit = uint64_t{1} << 60;  // encloses nothing on the stack
  // A range of Python's: the task says whether it is in it.
  static constexpr uint64_t kEnteredBit = uint64_t{1} << 61;
  static constexpr uint64_t kPythonBit = uint64_t{1} << 62;  // Python may run inside it, directly
  static constexpr uint64_t kBaseBit = uint64_t{1} << 63;    // begun with kBaseBegin

  uint64_t key;
  uint64_t word;  // the ordinal, 0 where the begin was not recorded; exceptions; and bits
  // The contextvars context in which it began; with kEarlierBit what was around it as its thread
  // was met.
  uint64_t task;

  uint64_t ordinal() const { return word & kOrdinalMask; }
  uint32_t in_flight() const { return word >> kInFlightShift & kMaxInFlight; }
  uint32_t handled() const { return word >> kHandledShift & ((1u << kHandledBits) - 1); }
  bool began_earlier() const { return (word & kEarlierBit) != 0; }
  bool has_moved() const { return (word & kMovedBit) != 0; }
  bool is_frame() const { return (word & kFrameBit) != 0; }
  bool is_entered() const { return (word & kEnteredBit) != 0; }
  bool runs_python() const { return (word & kPythonBit) != 0; }
  bool is_base() const { return (word & kBaseBit) != 0; }
};
static_assert(uint64_t{1} << (OpenEntry::kHandledShift + OpenEntry::kHandledBits) ==
              OpenEntry::kEarlierBit);

// The exceptions in the calling thread, as far as an entry has room for them.
struct Exceptions {
  uint32_t in_flight = 0;  // how many of C++ unwind its stack
  uint32_t handled = 0;    // stands for the one that its Python code handles

  void note(OpenEntry& entry) const {
    entry.word |= uint64_t{in_flight} << OpenEntry::kInFlightShift;
    entry.word |= uint64_t{handled} << OpenEntry::kHandledShift;
  }
};

struct NameSlot {
  uint64_t hash;
  uint64_t size_plus_one;  // 0: empty
};

// Keys of ranges that another thread ended, told by the drain to the thread that still has them on
// its stack.
struct EndedByOthers {
  static constexpr uint32_t kCapacity = 64;
  std::atomic<uint32_t> head{0}, tail{0};
  uint64_t keys[kCapacity];

  bool push(uint64_t key) {
    const uint32_t at = head.load(std::memory_order_relaxed);
    // Acquire: the thread has read the key in the slot that is written now.
    if (at - tail.load(std::memory_order_acquire) == kCapacity) return false;
    keys[at % kCapacity] = key;
    // Release: whoever sees the new head sees the key.
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

constexpr uint32_t kMaxRings = 10;  // the tenth is as large as all rings may be together

struct SharedByRings {
  std::atomic<uint64_t> total_bytes{0};
  DrainWaker waker;
};

enum Unsent : uint8_t {
  kContextUnsent = 1,
  kProfilerUnsent = 2,
  kParentUnsent = 4,
  kEpochUnsent = 8
};

// Why the last refresh holds no more: the context may have changed; another thread has ended this
// one's Python calls.
enum Stale : uint8_t { kContextStale = 1, kCallsEnded = 2 };

// How the parent of the next begin was determined by the last context refresh.
enum ParentKind : uint8_t { kByContext, kByStack, kByOrdinal };

constexpr uint32_t kNoEpoch = 0;

// Why recording is disabled on this thread: explicitly, or because the current span is
// not sampled.
enum DisableReason : uint8_t {
  kDisabled = 1,
  kUnsampled = 2,
  kDisabledInTorch = 4
};  // the last: until the switch is on again

// Five cache lines: nearer ones come too late, farther ones gain nothing. In words.
constexpr uint64_t kWordsAhead = 40;

// Prefetches memory that the thread will write in a moment: the drain has read it on another core,
// or it is in no cache any more. A store that waits for it holds up those after it, and soon the
// thread. Without it an operator took 158 to 165 ns instead of 143 to 149, which is 1.9 times an
// empty callback pair, where 1.7 is allowed. Traced Python calls gain nothing, and don't ask.
[[gnu::always_inline]] inline void write_soon(const uint64_t* words) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*words));  // compilers make it only for newer processors
#else
  __builtin_prefetch(words, 1);
#endif
}

// The ring that is written.
struct RingWriter {
  uint64_t* words = nullptr;
  uint64_t capacity = 0;
  uint64_t head = 0;
  uint64_t limit = 0;  // as far as is known there is room up to this position
};

// Of the thread's stack, `ThreadBuffer::stack`.
struct OpenStack {
  uint32_t depth = 0;
  uint32_t floor = 0;     // entries below it belong to an earlier recording
  uint32_t recorded = 0;  // each has kEndWords reserved
  // Entries from here on began since the last refresh, in the same task.
  uint32_t since_refresh = 0;
};

// Which recording the thread writes to, and what it writes before its next begin.
struct RecordingState {
  uint32_t epoch = 0;
  uint32_t enabled_epoch = 0;  // what it was, while the thread is disabled and `epoch` is kNoEpoch
  uint8_t disabled_by = 0;     // DisableReason
  uint8_t unsent = 0;          // Unsent
};

// What the last refresh found, and whether it still holds: see parents/parents.hpp.
struct ContextRefresh {
  uint64_t version = 0;
  uint64_t task = 0;                          // the contextvars context that is entered
  uint64_t parent_ordinal = 0;                // of the parent, where that is kByOrdinal
  std::atomic<uint8_t> stale{kContextStale};  // Stale
  ParentKind parent = kByContext;
  bool is_python_thread = false;  // Python started this thread: it works for no other one
};

// What the ring's last records say, or those will that are `unsent`.
struct PrecedingRecords {
  Context context;
  uint64_t context_since = 0;   // the begins after so many have it
  uint64_t parent_ordinal = 0;  // of the next begin's parent
  uint32_t profiler = 0;
};

// What the thread propagates to those that work for it: see parents/tasks/propagation.cpp.
struct Propagation {
  uint64_t serial = UINT64_MAX;  // of what it propagated last
  void* pending = nullptr;  // a reference to the entry that PyTorch's next begin here propagates
  void* carrier = nullptr;  // torch observer: the object in which PyTorch carries it
};

// How much the thread has worked, as it was read last.
struct CpuClock {
  uint64_t range_began_at = 0;  // in ticks: when its newest range of Python's began
  int64_t worked_ns = 0;
  uint64_t worked_at = 0;  // in ticks
};

// Begins that were not recorded.
struct Unrecorded {
  std::atomic<uint64_t> dropped{0};
  std::atomic<uint64_t> unsampled{0};  // because the thread is disabled
};

struct RingGrowth {
  std::atomic<uint64_t> max_capacity{0};  // in words; a later recording may raise it
  uint64_t woken_at = UINT64_MAX;         // up to where the drain had read when it was last woken
  SharedByRings* shared = nullptr;
};

// What the producer and the drain both read or write.
struct RingReading {
  alignas(64) std::atomic<uint64_t> published{0};
  alignas(64) std::atomic<uint64_t> consumed{0};
  std::atomic<bool> ended{false};
  Ring rings[kMaxRings] = {};
  std::atomic<uint32_t> num_rings{0};
  bool is_known = false;     // the drain's own: it knows this thread
  uint32_t oldest_ring = 0;  // the drain's own: those before it are gone
};

struct ThreadIdentity {
  std::atomic<uint64_t> thread_id{0};  // RecordFunction's logical id
  uint64_t native_id = 0;
  uint64_t ident = 0;
  bool is_named = false;       // Python was asked for the thread's name
  bool has_torchs_id = false;  // what PyTorch calls the thread is noted
};

struct ThreadBuffer {
  // What each call reads comes first, in two lines of the cache: that is worth 2 ns of a C call.
  RingWriter ring;
  OpenStack open;
  RecordingState recording;
  uint64_t number = 0;
  std::atomic<uint64_t> ordinal{0};  // begins recorded
  ContextRefresh refresh;
  EndedByOthers ended_by_others;  // written by the drain, seldom
  // What few calls read.
  PrecedingRecords preceding;
  // What was current as the last refresh found one of PyTorch's ranges on the stack.
  Context context_below_torch;
  uint32_t profiler = 0;  // the run that this thread was told to work for
  Propagation propagation;
  CpuClock cpu;
  Unrecorded counts;
  RingGrowth growth;
  RingReading reading;
  ThreadIdentity identity;
  OpenEntry stack[kMaxDepth];
  NameSlot names[kNameSlots];

  void put(uint64_t word) { ring.words[ring.head++ & (ring.capacity - 1)] = word; }

  // What will be written soon where the ring is at this position now.
  void write_soon_from(uint64_t position) const {
    write_soon(&ring.words[(position + kWordsAhead) & (ring.capacity - 1)]);
  }

  void put_bytes(Text text) {
    for (uint32_t at = 0; at < text.size; at += 8) {
      uint64_t word = 0;
      std::memcpy(&word, text.data + at, text.size - at < 8 ? text.size - at : 8);
      put(word);
    }
  }

  bool has_room(uint64_t count) { return ring.head + count <= ring.limit || find_room(count); }

  bool find_room(uint64_t count);

  // Writes `count` words and publishes them with all that was put before. The members are read
  // once, into locals: what is stored into the ring could alias them, as far as the compiler knows,
  // so that it read them again after each store. That cost an operator 10 ns.
  template <uint32_t count>
  [[gnu::always_inline]] void put_and_publish(const uint64_t (&record)[count]) {
    uint64_t* const words = ring.words;
    const uint64_t mask = ring.capacity - 1;
    const uint64_t at = ring.head;
    for (uint32_t index = 0; index < count; ++index) words[(at + index) & mask] = record[index];
    ring.head = at + count;
    // Release, for the drain's acquire in read_thread: it sees the words, and those of a ring that
    // was begun before them.
    reading.published.store(at + count, std::memory_order_release);
  }
};
static_assert(offsetof(ThreadBuffer, number) == 64,
              "what each begin reads is two lines of the cache");
static_assert(offsetof(ThreadBuffer, ended_by_others.keys) <= 128,
              "and so is what each begin compares");

// While the thread is disabled its epoch is kNoEpoch, which is never the current one. So begins,
// which compare epochs anyway, need no check of their own for disabled threads (`catch_up`).
inline void set_disabled(ThreadBuffer& buffer, DisableReason reason, bool on) {
  const uint32_t reasons = buffer.recording.disabled_by;
  const bool was_disabled = reasons != 0;
  buffer.recording.disabled_by = static_cast<uint8_t>(on ? reasons | reason : reasons & ~reason);
  if (was_disabled == (buffer.recording.disabled_by != 0)) return;
  if (!was_disabled) buffer.recording.enabled_epoch = buffer.recording.epoch;
  buffer.recording.epoch = was_disabled ? buffer.recording.enabled_epoch : kNoEpoch;
}

// A capture began since this thread's last begin: what is open belongs to an earlier one.
inline void enter_epoch(ThreadBuffer& buffer, uint32_t epoch) {
  buffer.recording.epoch = epoch;
  buffer.open.floor = buffer.open.depth;
  buffer.open.recorded = 0;
  buffer.recording.unsent |= kEpochUnsent;
  buffer.refresh.stale |= kContextStale;
}

// A thread's ring begins small and grows when its thread writes faster than the drain reads, so
// that thousands of quiet threads take little memory, and few busy ones what they need.
//
//   position   0 ............ P1 .................... P2 ..........>      (never reused)
//   ring       small, from 0  | four times as large    | the largest
//
// What stands before a position where a larger ring begins stays where it is until the drain has
// read it, and then goes with its ring. No record lies across such a position, because room is
// found before a record is begun.

constexpr uint64_t kMaxTotalBytes = uint64_t{4} << 30;  // of all rings and threads' states
constexpr uint64_t kRingGrowth = 4;
constexpr uint64_t kFirstRing = 2048;  // words, where the limit isn't smaller still
// Words; where more is allowed it is for drains that come late.
constexpr uint64_t kUsualRing = uint64_t{1} << 20;
static_assert((kFirstRing * 8) << (2 * (kMaxRings - 1)) == kMaxTotalBytes && kRingGrowth == 4,
              "rings may grow until there is no memory for larger ones");

// Zeros, which count as so many bytes; null when there are none, or all threads would have too
// many.
inline void* map_memory(std::atomic<uint64_t>& total_bytes, uint64_t bytes, uint64_t counted) {
  void* memory = MAP_FAILED;
  if (total_bytes.fetch_add(counted) + counted <= kMaxTotalBytes) {
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  if (memory != MAP_FAILED) return memory;
  total_bytes.fetch_sub(counted);
  return nullptr;
}

inline uint64_t* map_ring(std::atomic<uint64_t>& total_bytes, uint64_t capacity) {
  return static_cast<uint64_t*>(map_memory(total_bytes, capacity * 8, capacity * 8));
}

inline void unmap_ring(std::atomic<uint64_t>& total_bytes, const Ring& ring) {
  munmap(ring.words, ring.capacity * 8);
  total_bytes.fetch_sub(ring.capacity * 8);
}

// Goes on in a larger ring, one in which `count` words fit. False when there is none.
inline bool grow_ring(ThreadBuffer& buffer, uint64_t count) {
  const uint32_t rings = buffer.reading.num_rings.load(std::memory_order_relaxed);
  uint64_t capacity = buffer.ring.capacity;
  do {
    const uint64_t limit = buffer.growth.max_capacity.load(std::memory_order_relaxed);
    if (capacity >= limit || rings == kMaxRings) return false;
    capacity = std::min(capacity * kRingGrowth, limit);
  } while (capacity < count);
  uint64_t* words = map_ring(buffer.growth.shared->total_bytes, capacity);
  if (words == nullptr) return false;
  buffer.reading.rings[rings] = {words, capacity, buffer.ring.head};
  // Release, for the drain's acquire in enter_ring: the entry is written before it counts.
  buffer.reading.num_rings.store(rings + 1, std::memory_order_release);
  buffer.ring.words = words;
  buffer.ring.capacity = capacity;
  return true;
}

// The drain comes by its clock, and is woken when a thread has filled a quarter of what it usually
// may: once for each position that it has read up to, since it may be on its way.
[[gnu::noinline]] inline bool ThreadBuffer::find_room(uint64_t count) {
  // Acquire, for the drain's release: the words up to there have been read, and may be written
  // over.
  const uint64_t read = reading.consumed.load(std::memory_order_acquire);
  const uint64_t usual = std::min(growth.max_capacity.load(std::memory_order_relaxed), kUsualRing);
  const uint64_t quarter = read + usual / 4;
  if (ring.head + count > quarter && growth.woken_at != read) {
    growth.woken_at = read;
    growth.shared->waker.wake();
  }
  const auto ring_end = [&] {
    const uint32_t newest = reading.num_rings.load(std::memory_order_relaxed) - 1;
    return std::max(read, reading.rings[newest].from) + ring.capacity;
  };
  if (ring.head + count > ring_end() && !grow_ring(*this, count)) return false;
  // Where the drain is still to be woken, the limit is where: so this is called again there.
  ring.limit = growth.woken_at == read ? ring_end() : std::min(ring_end(), quarter);
  return true;
}

constexpr uint64_t kCoreApiVersion = 22;
constexpr uint64_t kCoreLayout = kCoreApiVersion << 56 | (sizeof(Globals) & 0xFFFFFFF) << 28 |
                                 (sizeof(ThreadBuffer) & 0xFFFFFFF);

// What the recorder hands to the torch observer, a library of its own that is compiled on the
// user's machine. Both compile begin_end.hpp, so both must see the same structures: `layout` is
// compared before anything is touched.
struct CoreApi {
  uint64_t layout;
  Globals* globals;
  ThreadBuffer* (*thread_buffer)();  // the calling thread's; null in a dying thread
};

}  // namespace recfn
