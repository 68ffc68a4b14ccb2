// A thread's dictionary of names and stacks: a record names a slot, and the drain knows what the slot holds.
#pragma once
#include <cstdint>
#include <cstring>

#include "core/ring_growth.hpp"

namespace recfn {

inline uint64_t mix(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

inline uint64_t load_up_to_8(const char* data, uint32_t size) {
  uint64_t word = 0;
  if (size >= 8) {
    std::memcpy(&word, data, 8);
  } else if (size >= 4) {
    uint32_t low, high;
    std::memcpy(&low, data, 4);
    std::memcpy(&high, data + size - 4, 4);
    word = low | static_cast<uint64_t>(high) << 32;
  } else if (size > 0) {
    word = static_cast<uint8_t>(data[0]) | static_cast<uint8_t>(data[size / 2]) << 8 |
           static_cast<uint64_t>(static_cast<uint8_t>(data[size - 1])) << 16;
  }
  return word;
}

// Names are told apart by this and their size. The seed is random per process: no input can aim for a collision.
inline uint64_t hash_name(Text name, uint64_t seed) {
  constexpr uint64_t kOdd = 0x9E3779B97F4A7C15u;
  uint64_t state = seed ^ name.size;
  const char* at = name.data;
  uint32_t left = name.size;
  for (; left > 8; at += 8, left -= 8) state = mix(state ^ load_up_to_8(at, 8), kOdd);
  return mix(state ^ load_up_to_8(at, left), kOdd ^ seed);
}

// Where a name stands in the thread's dictionary, which the drain rebuilds from the Name records. `hit` says whether it
// already stands there; if not, writing it replaces what the slot held.
inline uint32_t find_name_slot(ThreadBuffer& buffer, Text name, uint64_t hash, bool& hit) {
  constexpr uint32_t kProbes = 4;
  const auto home = static_cast<uint32_t>(hash);
  uint32_t victim = (home + (static_cast<uint32_t>(hash >> 40) & (kProbes - 1))) & (kNameSlots - 1);
  for (uint32_t probe = 0; probe < kProbes; ++probe) {
    const uint32_t slot = (home + probe) & (kNameSlots - 1);
    const NameSlot& held = buffer.names[slot];
    if (held.hash == hash && held.size_plus_one == name.size + 1u) {
      hit = true;
      return slot;
    }
    if (held.size_plus_one == 0) {
      victim = slot;
      break;
    }
  }
  hit = false;
  return victim;
}

[[gnu::noinline]] inline void put_name(ThreadBuffer& buffer, Text name, uint64_t hash, uint32_t slot) {
  buffer.names[slot] = {hash, name.size + 1u};
  buffer.put(header(kName, 0, 0, slot, name.size));
  buffer.put_text(name);
}

[[gnu::noinline]] inline void count_shortened(ThreadBuffer& buffer) {
  buffer.shortened.store(buffer.shortened.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

// The text's slot in the dictionary, into which it is written if need be; kManyNamesSlot when that would take too much room.
inline uint32_t put_named(ThreadBuffer& buffer, Text text) {
  bool named;
  const uint64_t hash = hash_name(text, buffer.name_seed);
  const uint32_t slot = find_name_slot(buffer, text, hash, named);
  if (named) return slot;
  if (is_crowded(buffer)) return count_shortened(buffer), kManyNamesSlot;
  put_name(buffer, text, hash, slot);
  return slot;
}

}  // namespace recfn
