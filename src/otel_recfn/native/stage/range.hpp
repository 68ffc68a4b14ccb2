// A range that has ended, and where ranges stand in a list, by event id.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "memory/unfilled.hpp"
#include "model/events.hpp"
#include "stage/containers.hpp"

namespace recfn::stage {

// Names, and paths of modules, by their numbers. Times in nanoseconds.
struct Range {
  uint64_t event_id, parent;
  int64_t start_ns, duration_ns;
  uint32_t name, flags;   // what it is added up by with others: of a module call the class
  int64_t row;            // its number, as the caller counts
  uint32_t shown;         // what it is called: as PyTorch's range around a backward node, the node
  uint32_t module;        // where in its model it is the call of a module; 0: in none
  uint32_t modules;       // the same, with `*` for each number
  int64_t cpu_time_ns;    // -1: not known
};

using Ranges = UnfilledVector<Range>;

// PyTorch runs a backward node in a range around it. Both are one span.
template <typename Around>
bool is_node_of(const Around& around, uint32_t name) {
  return around.shown == name && around.shown != around.name;
}

// Where ranges stand in a list, by event id. A thread's event ids count up, so that most lists have nearly all between their
// smallest and their largest one of a thread: each of these then has a place of its own. Other lists are hashed.
class PlacesOfIds {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  // For these ids, none of which has a place yet.
  void clear_for(const Ranges& held) {
    const size_t slots = find_runs(held) ? place_runs(held.size()) : 0;
    if (slots == 0) count_ = 0;
    slots_.assign(count_ == 0 ? hashed_slots(held.size()) : slots, kNone);
    last_ = Run{};
  }

  // The id, one of those, stands there now. Whether it stood elsewhere before.
  bool put(const Ranges& held, uint64_t event_id, uint32_t place) { return std::exchange(*slot(held, event_id), place) != kNone; }

  uint32_t find(const Ranges& held, uint64_t event_id) {
    const uint32_t* found = slot(held, event_id);
    return found == nullptr ? kNone : *found;
  }

 private:
  // Ids of one thread, from the smallest to the largest.
  struct Run {
    uint64_t first = 0, ids = 0;
    size_t slots = 0;  // where its own begin

    bool has(uint64_t event_id) const { return event_id - first < ids; }
    bool is_of_thread(uint64_t event_id) const { return (event_id ^ first) >> kOrdinalBits == 0; }
  };
  static constexpr size_t kMostRuns = 8;
  static constexpr size_t kSlotsOfAnId = 8;

  // False where there are too many. Neighbours mostly are of one thread.
  bool find_runs(const Ranges& held) {
    count_ = 0;
    for (size_t at = 0; at < held.size();) {
      Run* run = find_or_begin(held[at].event_id);
      if (run == nullptr) return false;
      at = widen(*run, held, at);
    }
    return true;
  }

  // By what follows and is of its thread. Where the next thread's begin.
  static size_t widen(Run& run, const Ranges& held, size_t at) {
    const Run thread = run;
    uint64_t first = run.first, last = run.first + (run.ids - 1);
    for (; at < held.size() && thread.is_of_thread(held[at].event_id); ++at) {
      first = std::min(first, held[at].event_id), last = std::max(last, held[at].event_id);
    }
    run.first = first, run.ids = last - first + 1;
    return at;
  }

  Run* find_or_begin(uint64_t event_id) {
    for (size_t at = 0; at < count_; ++at) {
      if (runs_[at].is_of_thread(event_id)) return &runs_[at];
    }
    if (count_ == kMostRuns) return nullptr;
    runs_[count_] = {event_id, 1, 0};
    return &runs_[count_++];
  }

  // How many slots are needed; none where it would be far more than there are ids.
  size_t place_runs(size_t ids) {
    const size_t most = kSlotsOfAnId * ids + 64;
    size_t slots = 0;
    for (Run* run = runs_; run != runs_ + count_; ++run) {
      run->slots = slots;
      if (run->ids > most - slots) return 0;
      slots += run->ids;
    }
    return slots;
  }

  static size_t hashed_slots(size_t ids) {
    size_t size = 16;
    while (size < 2 * ids) size *= 2;
    return size;
  }

  // Null where it lies in no run, as some do that were not among the ids.
  uint32_t* slot(const Ranges& held, uint64_t event_id) {
    if (!last_.has(event_id)) {
      if (count_ == 0) return hashed_slot(held, event_id);
      const Run* run = std::find_if(runs_, runs_ + count_, [event_id](const Run& one) { return one.has(event_id); });
      if (run == runs_ + count_) return nullptr;
      last_ = *run;
    }
    return &slots_[last_.slots + (event_id - last_.first)];
  }

  // Its own, or an empty one where it isn't there.
  uint32_t* hashed_slot(const Ranges& held, uint64_t event_id) {
    const size_t mask = slots_.size() - 1;
    size_t at = scrambled(event_id) & mask;
    while (slots_[at] != kNone && held[slots_[at]].event_id != event_id) at = (at + 1) & mask;
    return &slots_[at];
  }

  std::vector<uint32_t> slots_;
  Run runs_[kMostRuns];
  size_t count_ = 0;  // of runs; none where ids are hashed
  Run last_;          // that was asked for
};

}  // namespace recfn::stage
