// Where ranges stand in a list, by event id.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "fold/range.hpp"

namespace recfn::folding {

// A thread's event ids count up, so that most lists have nearly all between their smallest and their largest one of a thread:
// each of these then has a place of its own. Other lists are hashed.
class PlacesOfIds {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  // Of several with one id the first one counts; `visit(place, first)` tells of each whether it is that.
  template <typename Visit>
  void index(const Ranges& held, Visit visit) {
    const size_t slots = find_runs(held) ? place_runs(held.size()) : 0;
    hashed_ = slots == 0;
    slots_.assign(hashed_ ? hashed_slots(held.size()) : slots, kNone);
    for (uint32_t place = 0; place < held.size(); ++place) {
      const uint64_t event_id = held[place].event_id;
      uint32_t& slot = slots_[hashed_ ? hashed_slot(held, event_id) : run_of(event_id)->slot(event_id)];
      visit(place, slot == kNone);
      if (slot == kNone) slot = place;
    }
  }

  uint32_t find(const Ranges& held, uint64_t event_id) {
    if (hashed_) return slots_[hashed_slot(held, event_id)];
    const Run* run = run_of(event_id);
    return run == nullptr ? kNone : slots_[run->slot(event_id)];
  }

 private:
  // The ids of a thread.
  struct Run {
    uint64_t first, last;
    size_t slots;  // where its own begin

    bool has(uint64_t event_id) const { return event_id - first <= last - first; }
    bool is_of_thread(uint64_t event_id) const { return (event_id ^ first) >> kOrdinalBits == 0; }
    size_t slot(uint64_t event_id) const { return slots + (event_id - first); }
  };
  static constexpr size_t kMostRuns = 8;
  static constexpr size_t kSlotsOfAnId = 8;

  // False where there are too many. Neighbours mostly are of one thread.
  bool find_runs(const Ranges& held) {
    count_ = last_ = 0;
    for (size_t at = 0; at < held.size();) {
      if (!find_or_begin(held[at].event_id)) return false;
      at = widen(runs_[last_], held, at);
    }
    return true;
  }

  // By what follows and is of its thread. Where the next thread's begin.
  static size_t widen(Run& run, const Ranges& held, size_t at) {
    const Run thread = run;
    uint64_t first = run.first, last = run.last;
    for (; at < held.size() && thread.is_of_thread(held[at].event_id); ++at) {
      first = std::min(first, held[at].event_id), last = std::max(last, held[at].event_id);
    }
    run.first = first, run.last = last;
    return at;
  }

  bool find_or_begin(uint64_t event_id) {
    for (last_ = 0; last_ < count_; ++last_) {
      if (runs_[last_].is_of_thread(event_id)) return true;
    }
    if (count_ == kMostRuns) return false;
    runs_[count_++] = {event_id, event_id, 0};
    return true;
  }

  // How many slots are needed; none where it would be far more than there are ids.
  size_t place_runs(size_t ids) {
    const size_t most = kSlotsOfAnId * ids + 64;
    size_t slots = 0;
    for (Run* run = runs_; run != runs_ + count_; ++run) {
      run->slots = slots;
      if (run->last - run->first >= most - slots) return 0;
      slots += run->last - run->first + 1;
    }
    return slots;
  }

  static size_t hashed_slots(size_t ids) {
    size_t size = 16;
    while (size < 2 * ids) size *= 2;
    return size;
  }

  // Null where it lies in none, as some do that were not indexed.
  const Run* run_of(uint64_t event_id) {
    if (last_ < count_ && runs_[last_].has(event_id)) return &runs_[last_];
    for (last_ = 0; last_ < count_; ++last_) {
      if (runs_[last_].has(event_id)) return &runs_[last_];
    }
    return nullptr;
  }

  // Its own, or the empty one where it isn't there.
  size_t hashed_slot(const Ranges& held, uint64_t event_id) const {
    const size_t mask = slots_.size() - 1;
    size_t at = scrambled(event_id) & mask;
    while (slots_[at] != kNone && held[slots_[at]].event_id != event_id) at = (at + 1) & mask;
    return at;
  }

  std::vector<uint32_t> slots_;
  Run runs_[kMostRuns];
  size_t count_ = 0, last_ = 0;  // how many there are; which was asked for last
  bool hashed_ = false;
};

}  // namespace recfn::folding
