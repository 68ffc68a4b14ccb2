// Span ids from event ids, as support/span_ids.py makes them, which says why so; a test compares both.
#pragma once
#include <cstdint>

namespace recfn {

inline uint64_t span_id_of(uint64_t event_id, uint64_t key) {
  uint64_t mixed = event_id ^ key;
  mixed = (mixed ^ mixed >> 32) * 0xBF58476D1CE4E5B9u;
  mixed = (mixed ^ mixed >> 32) * 0x94D049BB133111EBu;
  return mixed ^ mixed >> 32;
}

}  // namespace recfn
