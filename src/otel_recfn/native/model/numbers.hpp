// Numbers of 64 bits: span ids, what hashes multiply by, and sums that wrap around.
#pragma once
#include <cstdint>

namespace recfn {

// The span id of an event id, as support/span_ids.py makes it, which says why so; a test compares
// both.
inline uint64_t span_id_of(uint64_t event_id, uint64_t key) {
  uint64_t mixed = event_id ^ key;
  mixed = (mixed ^ mixed >> 32) * 0xBF58476D1CE4E5B9u;
  mixed = (mixed ^ mixed >> 32) * 0x94D049BB133111EBu;
  return mixed ^ mixed >> 32;
}

// 2^64 divided by the golden ratio: multiples of it are spread out.
constexpr uint64_t kOddNumber = 0x9E37'79B9'7F4A'7C15;

inline uint64_t scrambled(uint64_t number) {
  number *= kOddNumber;
  return number ^ number >> 32;
}

// Sums without undefined behaviour where times are nonsense, or many.
inline int64_t wrapped_sum(int64_t one, int64_t other) {
  return static_cast<int64_t>(static_cast<uint64_t>(one) + static_cast<uint64_t>(other));
}
inline int64_t wrapped_difference(int64_t one, int64_t other) {
  return static_cast<int64_t>(static_cast<uint64_t>(one) - static_cast<uint64_t>(other));
}

}  // namespace recfn
