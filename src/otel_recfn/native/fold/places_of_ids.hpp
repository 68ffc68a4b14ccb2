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
    const size_t size = measure(held);
    slots_.assign(size, kNone);
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
    if (!hashed_ && !is_between(event_id)) return kNone;
    return slots_[slot_of(held, event_id)];
  }

 private:
  struct Thread {
    uint64_t number, first, last;  // ordinals
    size_t slots;                  // where its own begin
  };
  static constexpr size_t kMostThreads = 8;
  static constexpr size_t kSlotsOfAnId = 8;
  static constexpr uint64_t kOrdinals = (uint64_t{1} << kOrdinalBits) - 1;

  // How many slots are needed.
  size_t measure(const std::vector<Range>& held) {
    const size_t most = kSlotsOfAnId * held.size() + 64;
    size_t size = 0;
    threads_ = last_ = 0;
    hashed_ = false;
    for (const Range& one : held) {
      if (!note(one.event_id)) return hash(held.size());
    }
    for (size_t at = 0; at < threads_; ++at) {
      Thread& thread = known_[at];
      thread.slots = size;
      if (thread.last - thread.first >= most) return hash(held.size());
      size += thread.last - thread.first + 1;
    }
    return size <= most ? size : hash(held.size());
  }

  size_t hash(size_t ids) {
    size_t size = 16;
    while (size < 2 * ids) size *= 2;
    hashed_ = true;
    return size;
  }

  bool note(uint64_t event_id) {
    const uint64_t ordinal = event_id & kOrdinals;
    if (find_thread(event_id >> kOrdinalBits)) {
      Thread& thread = known_[last_];
      thread.first = std::min(thread.first, ordinal), thread.last = std::max(thread.last, ordinal);
      return true;
    }
    if (threads_ == kMostThreads) return false;
    last_ = threads_++;
    known_[last_] = {event_id >> kOrdinalBits, ordinal, ordinal, 0};
    return true;
  }

  bool find_thread(uint64_t number) {
    if (last_ < threads_ && known_[last_].number == number) return true;
    for (size_t at = 0; at < threads_; ++at) {
      if (known_[at].number == number) return last_ = at, true;
    }
    return false;
  }

  bool is_between(uint64_t event_id) {
    const uint64_t ordinal = event_id & kOrdinals;
    return find_thread(event_id >> kOrdinalBits) && ordinal >= known_[last_].first && ordinal <= known_[last_].last;
  }

  // Its own, or the empty one where it isn't there. Every id that isn't hashed lies between the ends of its thread's.
  size_t slot_of(const std::vector<Range>& held, uint64_t event_id) {
    if (!hashed_) {
      find_thread(event_id >> kOrdinalBits);
      return known_[last_].slots + ((event_id & kOrdinals) - known_[last_].first);
    }
    const size_t mask = slots_.size() - 1;
    size_t at = scrambled(event_id) & mask;
    while (slots_[at] != kNone && held[slots_[at]].event_id != event_id) at = (at + 1) & mask;
    return at;
  }

  std::vector<uint32_t> slots_;
  Thread known_[kMostThreads];
  size_t threads_ = 0, last_ = 0;  // how many are known; which was asked for last
  bool hashed_ = false;
};

}  // namespace recfn::folding
