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

  // Of several with one id the first one counts; `is_repeated(place)` tells of each other one.
  template <typename Repeated>
  void index(const std::vector<Range>& held, Repeated is_repeated) {
    const size_t slots = find_runs(held) ? place_runs(held.size()) : 0;
    hashed_ = slots == 0;
    slots_.assign(hashed_ ? hashed_slots(held.size()) : slots, kNone);
    for (uint32_t place = 0; place < held.size(); ++place) {
      uint32_t& slot = slots_[slot_of(held, held[place].event_id)];
      if (slot == kNone) {
        slot = place;
      } else {
        is_repeated(place);
      }
    }
  }

  uint32_t find(const std::vector<Range>& held, uint64_t event_id) {
    if (!hashed_ && !find_run(event_id)) return kNone;
    return slots_[slot_of(held, event_id)];
  }

 private:
  // The ids of a thread.
  struct Run {
    uint64_t first, last;
    size_t slots;  // where its own begin

    bool has(uint64_t event_id) const { return event_id >= first && event_id <= last; }
    bool is_of_thread(uint64_t event_id) const { return (event_id ^ first) >> kOrdinalBits == 0; }
  };
  static constexpr size_t kMostRuns = 8;
  static constexpr size_t kSlotsOfAnId = 8;

  // False where there are too many. Neighbours mostly are of one thread.
  bool find_runs(const std::vector<Range>& held) {
    count_ = last_ = 0;
    for (const Range& one : held) {
      if ((count_ == 0 || !runs_[last_].is_of_thread(one.event_id)) && !find_or_begin(one.event_id)) return false;
      Run& run = runs_[last_];
      run.first = std::min(run.first, one.event_id), run.last = std::max(run.last, one.event_id);
    }
    return true;
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

  bool find_run(uint64_t event_id) {
    if (last_ < count_ && runs_[last_].has(event_id)) return true;
    for (last_ = 0; last_ < count_; ++last_) {
      if (runs_[last_].has(event_id)) return true;
    }
    return false;
  }

  // Its own, or the empty one where it isn't there. Every id that isn't hashed lies in a run.
  size_t slot_of(const std::vector<Range>& held, uint64_t event_id) {
    if (!hashed_) {
      find_run(event_id);
      return runs_[last_].slots + (event_id - runs_[last_].first);
    }
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
