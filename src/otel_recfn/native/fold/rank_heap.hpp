// Ranges that may go, the one that goes first at the top: a heap with four below each, since most of its time are its misses.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "fold/known.hpp"
#include "fold/range.hpp"

namespace recfn::folding {

class RankHeap {
 public:
  bool empty() const { return items_.empty(); }
  Known* top() const { return items_.front().known; }
  // Whether such a one would go before all that are in it; it isn't empty.
  bool goes_first(const Rank& rank) const {
    const Item& first = items_.front();
    return rank.duration != first.duration ? rank.duration < first.duration : ranks_below(rank, first.known->kept.rank);
  }

  // One more can be pushed afterwards without memory running out.
  void reserve() {
    if (items_.size() == items_.capacity()) items_.reserve(2 * items_.size() + 8);
  }

  void push(Known* known) {
    items_.push_back({});
    size_t at = items_.size() - 1;
    const Item item{known->kept.rank.duration, known};
    for (size_t above; at > 0 && goes_before(item, items_[above = (at - 1) / kBelow]); at = above) items_[at] = items_[above];
    items_[at] = item;
  }

  Known* pop() {
    Known* first = items_.front().known;
    const Item last = items_.back();
    items_.pop_back();
    if (!items_.empty()) sink(last);
    return first;
  }

  void clear() { items_.clear(); }
  void swap(RankHeap& other) { items_.swap(other.items_); }

 private:
  struct Item {
    int64_t duration;  // of its rank
    Known* known;
  };
  static constexpr size_t kBelow = 4;

  static bool goes_before(const Item& one, const Item& other) {
    return one.duration != other.duration ? one.duration < other.duration : is_lower(*one.known, *other.known);
  }

  static bool is_lower(const Known& one, const Known& other) {
    if (ranks_below(one.kept.rank, other.kept.rank)) return true;
    return !ranks_below(other.kept.rank, one.kept.rank) && one.event_id < other.event_id;
  }

  // From the top, whose item is gone, to where it belongs.
  void sink(const Item& item) {
    size_t at = 0;
    for (size_t below; (below = at * kBelow + 1) < items_.size();) {
      const size_t end = std::min(below + kBelow, items_.size());
      size_t least = below;
      for (size_t each = below + 1; each < end; ++each) least = goes_before(items_[each], items_[least]) ? each : least;
      if (!goes_before(items_[least], item)) break;
      items_[at] = items_[least];
      at = least;
    }
    items_[at] = item;
  }

  std::vector<Item> items_;
};

}  // namespace recfn::folding
