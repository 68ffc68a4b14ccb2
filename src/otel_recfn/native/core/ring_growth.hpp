// A thread's ring begins small and grows when its thread writes faster than the drain reads, so that thousands of quiet threads
// take little memory, and few busy ones what they need.
//
//   position   0 ............ P1 .................... P2 ..........>      (never reused)
//   ring       small, from 0  | four times as large    | the largest
//
// What stands before a position where a larger ring begins stays where it is until the drain has read it, and then goes with its
// ring. No record lies across such a position, because room is found before a record is begun.
#pragma once
#include <sys/mman.h>

#include <algorithm>

#include "core/thread_buffer.hpp"

namespace recfn {

constexpr uint64_t kMaxTotalBytes = uint64_t{4} << 30;              // of all rings and threads' states
constexpr uint64_t kMaxGrownBytes = kMaxTotalBytes - (kMaxTotalBytes >> 3);  // what is beyond is left to new threads
constexpr uint64_t kRingGrowth = 4;
constexpr uint64_t kSmallestRing = 2048;  // words, where the limit isn't smaller still
constexpr uint64_t kUsualRing = uint64_t{1} << 20;  // words; where more is allowed it is for drains that come late

// Words of a thread's first ring.
inline uint64_t first_capacity(uint64_t max_capacity) {
  max_capacity = std::min(max_capacity, kUsualRing);
  return std::min(max_capacity, std::max(kSmallestRing, max_capacity / (kRingGrowth * kRingGrowth * kRingGrowth)));
}

// Memory for a ring; null when there is none, or all rings together would take more than `most_bytes`.
inline uint64_t* map_ring(uint64_t capacity, std::atomic<uint64_t>& total_bytes, uint64_t most_bytes) {
  const uint64_t bytes = capacity * 8;
  void* memory = MAP_FAILED;
  if (total_bytes.fetch_add(bytes) + bytes <= most_bytes) {
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  if (memory != MAP_FAILED) return static_cast<uint64_t*>(memory);
  total_bytes.fetch_sub(bytes);
  return nullptr;
}

inline void unmap_ring(const Ring& ring, std::atomic<uint64_t>& total_bytes) {
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
  uint64_t* words = map_ring(capacity, buffer.shared->total_bytes, kMaxGrownBytes);
  if (words == nullptr) return false;
  buffer.rings[rings] = {words, capacity, buffer.head};
  buffer.num_rings.store(rings + 1, std::memory_order_release);
  buffer.words = words, buffer.capacity = capacity;
  return true;
}

// A quarter of what the thread may fill.
inline uint64_t quarter_of(const ThreadBuffer& buffer) {
  return std::min(buffer.max_capacity.load(std::memory_order_relaxed), kUsualRing) / 4;
}

// The drain comes by its clock, and earlier when a thread has filled a quarter of what it usually may. Once for each position that
// it has read up to: it may be on its way.
inline void wake_drain(ThreadBuffer& buffer, uint64_t consumed) {
  if (buffer.woken_at == consumed) return;
  buffer.woken_at = consumed;
  buffer.shared->waker.wake();
}

[[gnu::noinline]] inline bool ThreadBuffer::find_room(uint64_t count) {
  const uint64_t read = consumed.load(std::memory_order_acquire), quarter = read + quarter_of(*this);
  if (head + count > quarter) wake_drain(*this, read);
  const auto end_of_ring = [&] { return std::max(read, rings[num_rings.load(std::memory_order_relaxed) - 1].from) + capacity; };
  if (head + count > end_of_ring() && !grow_ring(*this, count)) return false;
  limit = woken_at == read ? end_of_ring() : std::min(end_of_ring(), quarter);
  return true;
}

// Whether so much waits for the drain that names which aren't in the dictionary yet are left out.
inline bool is_crowded(const ThreadBuffer& buffer) {
  return buffer.head - buffer.consumed.load(std::memory_order_relaxed) > buffer.max_capacity.load(std::memory_order_relaxed) / 4;
}

}  // namespace recfn
