// What a thread that records has: its ring, its stack of open ranges, its name dictionary.
//
// Compiled both into the recorder and into the torch observer, which compare the layout (CoreApi)
// before they touch it.
#pragma once
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "core/globals.hpp"
#include "core/record.hpp"

namespace recfn {

// An open range. Its ordinal and bits are one word, written as one: after a store of a part, a load
// of the whole would wait for it.
struct OpenEntry {
  static constexpr uint64_t kEarlierBit =
      uint64_t{1} << 57;  // a Python call that was open as its thread was met
  static constexpr uint64_t kLeftBit =
      uint64_t{1} << 58;  // a frame of TorchScript's that went on in another thread
  static constexpr uint64_t kFrameBit = uint64_t{1} << 59;  // a frame of TorchScript's
  static constexpr uint64_t kAsyncBit = uint64_t{1} << 60;  // no parent by its place on the stack
  static constexpr uint64_t kEnteredBit =
      uint64_t{1} << 61;  // a range of Python's: the task says whether it is in it
  static constexpr uint64_t kPythonBit = uint64_t{1} << 62;  // Python may run inside it, directly
  static constexpr uint64_t kBaseBit = uint64_t{1} << 63;    // begun with kBaseBegin

  uint64_t key;
  uint64_t word;  // the ordinal, 0 where the begin was not recorded; and bits
  uint64_t task;  // the contextvars context in which it began; with kEarlierBit what was around it
                  // as its thread was met

  uint64_t ordinal() const { return word & (kEarlierBit - 1); }
  bool began_earlier() const { return (word & kEarlierBit) != 0; }
  bool was_left() const { return (word & kLeftBit) != 0; }
  bool is_frame() const { return (word & kFrameBit) != 0; }
  bool is_entered() const { return (word & kEnteredBit) != 0; }
  bool runs_python() const { return (word & kPythonBit) != 0; }
  bool is_base() const { return (word & kBaseBit) != 0; }
};

struct NameSlot {
  uint64_t hash;
  uint64_t size_plus_one;  // 0: empty
};

// Keys of ranges that another thread ended, told by the drain to the thread that still has them on
// its stack.
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

constexpr uint32_t kMaxRings = 10;

struct SharedByRings {
  std::atomic<uint64_t> total_bytes{0};
  DrainWaker waker;
};

enum Unsent : uint8_t {
  kContextUnsent = 1,
  kProfilerUnsent = 2,
  kParentUnsent = 4,
  kGenerationUnsent = 8
};

// Why the last look holds no more: the context may have changed; another thread has ended this
// one's Python calls.
enum Stale : uint8_t { kContextStale = 1, kCallsEnded = 2 };

// What a begin lies in that finds on the stack what the last look found.
enum ParentKind : uint8_t { kByContext, kByPlace, kByOrdinal };

constexpr uint32_t kNoGeneration = 0;

// Why a thread records nothing: somebody said so; nobody wants what lies in the span that is
// current.
enum Rest : uint8_t {
  kMuted = 1,
  kUnsampled = 2,
  kMutedInTorch = 4
};  // the last: until the switch is on again

constexpr uint64_t kWordsAhead =
    40;  // five cache lines: nearer ones come too late, farther ones gain nothing

// Prefetches memory that the thread will write in a moment: the drain has read it on another core,
// or it is in no cache any more. A store that waits for it holds up those after it, and soon the
// thread.
[[gnu::always_inline]] inline void write_soon(const uint64_t* words) {
#if defined(__x86_64__)
  asm volatile(
      "prefetchw %0"
      :
      : "m"(
          *words));  // of what is meant to be written, compilers make it only for newer processors
#else
  __builtin_prefetch(words, 1);
#endif
}

struct ThreadBuffer {
  // The producer's own. What each call reads comes first, in two lines of the cache.
  uint64_t* words = nullptr;  // of the ring that is written
  uint64_t capacity = 0;
  uint64_t head = 0;
  uint64_t limit = 0;  // as far as is known there is room up to this position
  uint32_t depth = 0;
  uint32_t floor = 0;          // stack entries below it belong to an earlier recording
  uint32_t open_recorded = 0;  // each has kEndWords reserved
  uint32_t generation = 0;
  std::atomic<uint8_t> context_stale{kContextStale};  // Stale
  bool has_logical_id = false;
  uint8_t rests =
      0;  // Rest; `generation` is kNoGeneration meanwhile, `kept_generation` what it was
  uint8_t unsent = 0;       // Unsent
  bool of_python = false;   // Python started this thread: it works for no other one
  uint32_t look_depth = 0;  // entries from here on began since the last look, in the same task
  uint32_t kept_generation = 0;
  uint64_t context_version = 0;
  uint64_t number = 0;
  std::atomic<uint64_t> ordinal{0};  // begins recorded
  std::atomic<uint64_t> leaf{
      0};  // the ordinal of an open call that isn't on the stack (begin_leaf); 0: none
  uint64_t task = 0;
  ClosedElsewhere closed_elsewhere;  // written by the drain, seldom
  uint32_t profiler = 0;             // the run that this thread was told to work for
  uint32_t profiler_sent = 0;        // the run that the ring's last Profiler record names
  bool name_noted = false;
  ParentKind look_parent = kByContext;  // what the last look found
  uint64_t look_ordinal = 0;            // kByOrdinal: of the parent
  uint64_t parent_ordinal = 0;          // unsent: of the next begin's parent
  Context context;                      // as the ring's last Context record has it, or will
  uint64_t context_since = 0;           // the begins after so many have it
  Context current_below;  // what was current as the last look found one of PyTorch's ranges on the
                          // stack
  uint64_t handed_on = UINT64_MAX;  // the serial of what this thread handed on last
  void* to_hand_on = nullptr;  // a reference to the entry that PyTorch's next begin here hands on
  void* carried = nullptr;     // torch observer: the object in which this thread hands on
  uint64_t began_at = 0;       // in ticks: when its newest range of Python's began
  int64_t worked_ns = 0;       // CPU time as it was read last, and when, in ticks
  uint64_t worked_at = 0;
  std::atomic<uint64_t> dropped{0};
  std::atomic<uint64_t> unsampled{0};     // begins not recorded, because the thread rests
  std::atomic<uint64_t> max_capacity{0};  // in words; a later recording may raise it
  uint64_t woken_at = UINT64_MAX;         // up to where the drain had read when it was last woken
  SharedByRings* shared = nullptr;
  // What the producer and the drain both read or write.
  alignas(64) std::atomic<uint64_t> published{0};
  alignas(64) std::atomic<uint64_t> consumed{0};
  std::atomic<bool> ended{false};
  Ring rings[kMaxRings] = {};
  std::atomic<uint32_t> num_rings{0};
  bool met = false;          // the drain's own: it knows this thread
  uint32_t oldest_ring = 0;  // the drain's own: those before it are gone
  std::atomic<uint64_t> thread_id{0};
  uint64_t native_id = 0, ident = 0;
  OpenEntry stack[kMaxDepth];
  NameSlot names[kNameSlots];

  void put(uint64_t word) { words[head++ & (capacity - 1)] = word; }

  // What will be written soon where the ring is at this position now.
  void write_soon_from(uint64_t position) const {
    write_soon(&words[(position + kWordsAhead) & (capacity - 1)]);
  }

  void put_bytes(Text text) {
    for (uint32_t at = 0; at < text.size; at += 8) {
      uint64_t word = 0;
      std::memcpy(&word, text.data + at, text.size - at < 8 ? text.size - at : 8);
      put(word);
    }
  }

  bool has_room(uint64_t count) { return head + count <= limit || find_room(count); }

  bool find_room(uint64_t count);

  // Writes `count` words and publishes them with all that was put before. The members are read
  // once: what is stored into the ring could alias them, as far as the compiler knows.
  template <uint32_t count>
  [[gnu::always_inline]] void put_and_publish(const uint64_t (&record)[count]) {
    uint64_t* const ring = words;
    const uint64_t mask = capacity - 1, at = head;
    for (uint32_t index = 0; index < count; ++index) ring[(at + index) & mask] = record[index];
    head = at + count;
    published.store(at + count, std::memory_order_release);
  }
};

inline void set_rest(ThreadBuffer& buffer, Rest reason, bool on) {
  const bool rested = buffer.rests != 0;
  buffer.rests = static_cast<uint8_t>(on ? buffer.rests | reason : buffer.rests & ~reason);
  if (rested == (buffer.rests != 0)) return;
  if (!rested) buffer.kept_generation = buffer.generation;
  buffer.generation = rested ? buffer.kept_generation : kNoGeneration;
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
constexpr uint64_t kUsualRing =
    uint64_t{1} << 20;  // words; where more is allowed it is for drains that come late

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
  const uint32_t rings = buffer.num_rings.load(std::memory_order_relaxed);
  uint64_t capacity = buffer.capacity;
  do {
    const uint64_t most = buffer.max_capacity.load(std::memory_order_relaxed);
    if (capacity >= most || rings == kMaxRings) return false;
    capacity = std::min(capacity * kRingGrowth, most);
  } while (capacity < count);
  uint64_t* words = map_ring(buffer.shared->total_bytes, capacity);
  if (words == nullptr) return false;
  buffer.rings[rings] = {words, capacity, buffer.head};
  buffer.num_rings.store(rings + 1, std::memory_order_release);
  buffer.words = words, buffer.capacity = capacity;
  return true;
}

// The drain comes by its clock, and is woken when a thread has filled a quarter of what it usually
// may: once for each position that it has read up to, since it may be on its way.
[[gnu::noinline]] inline bool ThreadBuffer::find_room(uint64_t count) {
  const uint64_t read = consumed.load(std::memory_order_acquire);
  const uint64_t quarter =
      read + std::min(max_capacity.load(std::memory_order_relaxed), kUsualRing) / 4;
  if (head + count > quarter && woken_at != read) woken_at = read, shared->waker.wake();
  const auto end_of_ring = [&] {
    return std::max(read, rings[num_rings.load(std::memory_order_relaxed) - 1].from) + capacity;
  };
  if (head + count > end_of_ring() && !grow_ring(*this, count)) return false;
  limit = woken_at == read ? end_of_ring() : std::min(end_of_ring(), quarter);
  return true;
}

constexpr uint64_t kCoreApiVersion = 19;
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
