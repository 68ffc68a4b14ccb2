// A range that has ended, and where ranges stand in a list, by event id.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/unfilled.hpp"
#include "model/events.hpp"
#include "model/numbers.hpp"

namespace recfn::stage {

// Names, and paths of modules, by their numbers. Times in nanoseconds.
struct Range {
  uint64_t event_id, parent;
  int64_t start_ns, duration_ns;
  uint32_t name, flags;  // what it is added up by with others: of a module call the class
  int64_t row;           // its number, as the caller counts
  uint32_t shown;        // what it is called: as PyTorch's range around a backward node, the node
  uint32_t module;       // where in its model it is the call of a module; 0: in none
  uint32_t modules;      // the same, with `*` for each number
  int64_t cpu_time_ns;   // -1: not known
};

using Ranges = UnfilledVector<Range>;

// PyTorch runs a backward node in a range around it. Both are one span.
template <typename Around>
bool is_node_of(const Around& around, uint32_t name) {
  return around.shown == name && around.shown != around.name;
}

// Where ranges stand in a list, by event id: a hash table of places in the list.
class PlacesOfIds {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  // For so many ranges, none of which has a place yet.
  void clear_for(size_t ranges) {
    size_t size = 16;
    while (size < 2 * ranges) size *= 2;
    slots_.assign(size, kNone);
  }

  // The id stands there now.
  void put(const Ranges& held, uint64_t event_id, uint32_t place) { slot(held, event_id) = place; }

  uint32_t find(const Ranges& held, uint64_t event_id) { return slot(held, event_id); }

 private:
  static constexpr size_t kNear =
      16;  // a thread's ids count up: so many have slots beside each other, which are read together

  // Its own, or an empty one where it isn't there.
  uint32_t& slot(const Ranges& held, uint64_t event_id) {
    const size_t mask = slots_.size() - 1;
    size_t at = (scrambled(event_id / kNear) * kNear + event_id % kNear) & mask;
    while (slots_[at] != kNone && held[slots_[at]].event_id != event_id)
      at = (at + kNear + 1) & mask;
    return slots_[at];
  }

  std::vector<uint32_t> slots_;
};

}  // namespace recfn::stage
