// A range that has ended, and where ranges stand in a list, by event id.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/unfilled.hpp"
#include "model/events.hpp"
#include "model/numbers.hpp"

namespace recfn::stage {

// Flags of ranges, beside those of events: it is a backward node; the program saw the span of the
// node in it, whose id is made of the node's; it is an operator that only calls one that has a
// span, and has none itself.
constexpr uint32_t kBackwardNode = 1u << 31, kNodeSpan = 1u << 30, kOnlyCalls = 1u << 29;

// The recorder's number of the thread that a range began in.
constexpr uint32_t thread_of(uint64_t event_id) {
  return static_cast<uint32_t>(event_id >> kOrdinalBits);
}

// The part of a path's key that isn't its name: see `Range::path_key`.
inline uint64_t key_without_name(uint64_t path_key) { return path_key >> 32; }

// Names, and paths of modules, by their numbers. Times in nanoseconds.
struct Range {
  uint64_t event_id, parent;
  int64_t start_ns, duration_ns;
  uint32_t name, flags;   // what it is added up by with others: of a module call the class
  int64_t row;            // its number, as the caller counts
  uint32_t display_name;  // what it is called: as PyTorch's range around a backward node, the node
  uint32_t module;        // where in its model it is the call of a module; 0: in none
  uint32_t modules;       // the same, with `*` for each number
  uint32_t to_node;   // from its event id to that of the backward node that is one span with it; 0:
                      // none is
  uint32_t selected;  // its place among its unit's kept ones, from 1; 0: it waits
  uint8_t scope;
  bool is_operator;     // of PyTorch's
  int64_t cpu_time_ns;  // -1: not known

  uint32_t thread() const { return thread_of(event_id); }  // the one that it began in

  // What those share that are added up in a path: their name and thread, and whether they only call
  // one that has a span.
  uint64_t path_key() const {
    const uint64_t is_caller = (flags & kOnlyCalls) != 0 ? 1 : 0;
    return is_caller << 63 | uint64_t{thread()} << 32 | name;
  }
};

using Ranges = UnfilledVector<Range>;

// Whether ranges of one thread may lie beside it in its time, so that it has no time of its own.
inline bool overlaps(const Range& one) { return (one.flags & kOverlapping) != 0; }

inline bool has_node(const Range& range) { return range.to_node != 0; }
inline uint64_t node_id(const Range& range) { return range.event_id + range.to_node; }

// The event id that the id of its span is made of.
inline uint64_t span_event_id(const Range& range) {
  return (range.flags & kNodeSpan) != 0 ? node_id(range) : range.event_id;
}

// PyTorch runs a backward node in a range around it. Both are one span, unless the program saw both
// spans: it begins and ends as the range around, and says what the node's row says, but where the
// range around alone failed. Whether they are one.
inline bool join(Range& enclosing, const Range& node) {
  const bool is_enclosing =
      enclosing.display_name == node.name && enclosing.display_name != enclosing.name;
  const bool is_closed = (enclosing.flags & kPartial) == 0;
  const bool are_both_seen = is_closed && (enclosing.flags & node.flags & kExposed) != 0;
  const uint64_t to_node =
      node.event_id - enclosing.event_id;  // it begins later in the same thread
  const bool is_near = to_node != 0 && to_node <= UINT32_MAX;
  if (!is_enclosing || !is_near || has_node(enclosing) || has_node(node) || are_both_seen) {
    return false;
  }
  enclosing.to_node = static_cast<uint32_t>(to_node);
  if ((enclosing.flags & kError) == 0 || (node.flags & kError) != 0) {
    enclosing.row = node.row;
    enclosing.scope = node.scope;
  }
  if ((node.flags & kExposed) != 0) enclosing.flags |= kNodeSpan;
  enclosing.flags |= node.flags & (kExposed | kError);
  return true;
}

// Where ranges stand in a list, by event id: a hash table of places in the list.
class IdIndex {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  // For so many ranges, none of which has a place yet. Each has one or two ids. Few have two, and
  // to count these would be one more pass over all ranges, which are larger than the processor's
  // cache. If all have two, eight ninths of the slots are full.
  void clear_for(size_t ranges) {
    size_t size = 16;
    while (4 * size < 9 * ranges) size *= 2;
    slots_.assign(size, kNone);
  }

  // Its ids stand there now.
  void put(const Ranges& ranges, uint32_t index) {
    slot(ranges, ranges[index].event_id) = index;
    if (has_node(ranges[index])) slot(ranges, node_id(ranges[index])) = index;
  }

  uint32_t find(const Ranges& ranges, uint64_t event_id) { return slot(ranges, event_id); }

 private:
  // A thread's ids count up: so many have slots beside each other, which are read together.
  static constexpr size_t kNear = 16;

  // Its own, or an empty one where it isn't there.
  uint32_t& slot(const Ranges& ranges, uint64_t event_id) {
    const size_t mask = slots_.size() - 1;
    size_t probe = (scrambled(event_id / kNear) * kNear + event_id % kNear) & mask;
    while (slots_[probe] != kNone && !has_id(ranges[slots_[probe]], event_id)) {
      probe = (probe + kNear + 1) & mask;
    }
    return slots_[probe];
  }
  static bool has_id(const Range& range, uint64_t event_id) {
    return range.event_id == event_id || node_id(range) == event_id;
  }

  std::vector<uint32_t> slots_;
};

}  // namespace recfn::stage
