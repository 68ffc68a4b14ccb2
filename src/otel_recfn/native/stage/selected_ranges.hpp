// Which ranges of a unit are selected to become spans, and which ranges the others lie in.
//
//     index     0           1             2
//     range     aten::mm    aten::addmm   Net
//     parent    1           2             none
//     rank      0.8 ms      0.9 ms        5 ms
//     selected  no          yes           yes
//
// A range comes after those that lie in it, as it ends after them. So one pass from the last to the
// first finds the parent of each, and one from the first to the last ranks each above all that lie
// in it. Therefore the ranges that rank highest always include the ranges around them.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/unfilled.hpp"
#include "model/events.hpp"
#include "stage/range.hpp"

namespace recfn::stage {

// Of parts of a unit that goes on: ranges that never come, as their thread has ended, stay awaited.
constexpr size_t kMaxPendingParents = 1 << 16;
// What took less than a thousandth of a unit is no span of its own, unless it failed: a page of the
// unit shows nothing of it.
constexpr int64_t kMinShare = 1000;
// Ranges above that threshold each get a span, if they fit the budget and leave out less than a
// tenth of the time: otherwise a page may show no operator.
constexpr int64_t kLeftOut = 10;
// In a tree of calls the threshold is the unit's time divided by its budget (50 at least), lowered
// until a fifth of the budget is used.
constexpr int64_t kFewestShares = 50, kPartOfBudget = 5;
// A range stands out that took at least twice the mean of the others on its path, and five shares:
// it is seen on the page then, and no more than ten do in an ordinary unit.
constexpr int64_t kOutlierFactor = 2, kOutlierShares = 5;
constexpr int kMaxRounds = 8;  // in which ranges are found that stand out in what stands out
// An operator that works itself for less than a tenth of its time only calls another one.
constexpr int64_t kOtherWork = 10;
constexpr int64_t kForced = int64_t{1} << 62;  // ranks above every duration
// Is added to the duration of a range that failed; others are shorter.
constexpr int64_t kFailed = int64_t{1} << 61;
constexpr uint32_t kNoName = 0;

struct Rank {
  int64_t duration;  // or `kForced`, or of one that failed `kFailed` and more
  uint64_t first;    // an event id: of equal durations the earlier one ranks higher
  int64_t height;
};
constexpr Rank kNothing{-1, 0, 0};  // ranks below all

inline bool ranks_below(const Rank& one, const Rank& other) {
  if (one.duration != other.duration) return one.duration < other.duration;
  if (one.first != other.first) return one.first > other.first;
  return one.height < other.height;
}

// Compares the two ranges alone, ignoring their descendants.
inline bool outranks_enclosed(const Range& enclosing, const Range& one) {
  if (enclosing.duration_ns != one.duration_ns) return enclosing.duration_ns > one.duration_ns;
  return enclosing.event_id < one.event_id;
}

// Whether one of two times is nearly all of the other one.
inline bool is_nearly_all(int64_t part_ns, int64_t whole_ns) {
  return part_ns >= whole_ns - whole_ns / kOtherWork;
}

// Whether the operators of a path do nothing but call those of another one in it: as many, which
// take nearly all of their time.
template <typename Paths>
bool only_calls(const Paths& callers, const Paths& called) {
  return callers.is_operator && called.is_operator && callers.count == called.count &&
         key_without_name(callers.key) == key_without_name(called.key) &&
         is_nearly_all(called.total_ns, callers.total_ns);
}

// How many of a unit's ranges are selected.
struct Bounds {
  int64_t budget;
  // So many that failed, or in which one did, are selected even if the budget is smaller.
  int64_t failed_budget;
  // Shorter ones are selected only if they failed, if the program saw their span, or if such a one
  // or a longer one lies in them.
  int64_t min_ns;
};

// The comparison of a unit's ranges: what lies in what, how they rank, and which are selected.
class Comparison {
 public:
  static constexpr uint32_t kNone = IdIndex::kNone;  // it lies directly in the unit
  static constexpr uint32_t kNotHere = kNone - 1;    // it lies in a range that hasn't come

  // Afterwards each range comes after all that lie in it, also if it came before one of them.
  void compare(Ranges& ranges, const Bounds& bounds) {
    bounds_ = bounds;
    parents_.resize(ranges.size());
    is_selected_.assign(ranges.size(), 0);
    if (!find_parents(ranges)) {
      put_in_order(ranges);
      find_parents(ranges);
    }
    if (bounds.budget > 0 || !nests_) {
      if (!nests_) rank_all(ranges);
      choose(ranges);
    }
    list_selected();
  }

  // Selects one more range, whose ancestors are selected already.
  void select(uint32_t index) { is_selected_[index] = 1; }

  // Deselects a range. What lies in it may remain selected.
  void drop(uint32_t index) { is_selected_[index] = 0; }

  void list_selected() {
    selected_.clear();
    selected_.reserve(static_cast<size_t>(std::count(is_selected_.begin(), is_selected_.end(), 1)));
    for (uint32_t index = 0; index < is_selected_.size(); ++index) {
      if (is_selected_[index] != 0) selected_.push_back(index);
    }
  }

  // Whether the range around it is an operator that does nothing but call it, and need not be
  // selected itself.
  bool is_only_called(const Ranges& ranges, uint32_t index) const {
    const uint32_t parent = parents_[index];
    if (parent >= kNotHere || comes_first(ranges[parent])) return false;
    const Range &caller = ranges[parent], &one = ranges[index];
    return caller.is_operator && one.is_operator && caller.thread() == one.thread() &&
           is_nearly_all(one.duration_ns, caller.duration_ns);
  }

  // Whether it is selected, however short it is.
  static bool comes_first(const Range& one) {
    return (one.flags & (kExposed | kError)) != 0 || one.duration_ns >= kFailed;
  }

  // The index of a range; `kNone` if it isn't here.
  uint32_t find(const Ranges& ranges, uint64_t event_id) { return ids_.find(ranges, event_id); }

  size_t size() const { return parents_.size(); }
  uint32_t parent(size_t index) const {
    return parents_[index];
  }  // the index of the range that it lies in
  bool is_selected(size_t index) const { return is_selected_[index] != 0; }
  const UnfilledVector<uint32_t>& selected() const {
    return selected_;
  }  // their indices, in ascending order
  Rank rank(const Ranges& ranges, size_t index) const {
    return nests_ ? own_rank(ranges[index]) : ranks_[index];
  }
  size_t not_here() const { return not_here_; }  // how many lie in ranges that haven't come

 private:
  struct Candidate {
    int64_t duration;
    uint32_t index;
  };

  // Whether what is around a range comes after it, as it mostly does.
  bool find_parents(const Ranges& ranges) {
    uint32_t* const parents = parents_.data();
    size_t not_here = 0;
    bool nests = true, any_first = false;
    ids_.clear_for(ranges.size());
    for (auto index = static_cast<uint32_t>(ranges.size()); index-- > 0;) {
      const Range& one = ranges[index];
      any_first |= comes_first(one);
      uint32_t parent = one.parent == 0 ? kNone : ids_.find(ranges, one.parent);
      if (parent != kNone) {
        nests &= outranks_enclosed(ranges[parent], one) &&
                 (ranges[parent].flags & ~one.flags & kInCompilation) == 0;
      } else if (one.parent != 0) {
        parent = kNotHere;
        ++not_here;
      }
      parents[index] = parent;
      ids_.put(ranges, index);
    }
    not_here_ = not_here;
    nests_ = nests && !any_first;
    return not_here == 0 || !find_ended_first(ranges);
  }

  // Finds parents that came before a range that lies in them. Returns whether there are any.
  bool find_ended_first(const Ranges& ranges) {
    bool any = false;
    for (uint32_t index = 0; index < ranges.size(); ++index) {
      if (parents_[index] != kNotHere) continue;
      const uint32_t parent = ids_.find(ranges, ranges[index].parent);
      if (parent == kNone) continue;
      parents_[index] = parent;
      any = true;
    }
    return any;
  }

  // Puts each range after all that lie in it. Ranges that lie in each other, which no recorder
  // reports, lie in nothing afterwards.
  void put_in_order(Ranges& ranges) {
    std::vector<uint32_t> remaining(ranges.size(),
                                    0);  // how many lie directly in it and aren't put yet
    std::vector<uint8_t> is_put(ranges.size(), 0);
    for (const uint32_t parent : parents_) {
      if (parent < kNotHere) ++remaining[parent];
    }
    Ranges ordered;
    ordered.reserve(ranges.size());
    for (uint32_t next = 0; next < ranges.size(); ++next) {
      for (uint32_t index = next; is_put[index] == 0 && remaining[index] == 0;) {
        ordered.push_back(ranges[index]);
        is_put[index] = 1;
        const uint32_t parent = parents_[index];
        if (parent >= kNotHere) break;
        --remaining[parent];
        if (parent > next) break;
        index = parent;
      }
    }
    for (uint32_t index = 0; index < ranges.size(); ++index) {
      if (is_put[index] != 0) continue;
      ordered.push_back(ranges[index]);
      ordered.back().parent = 0;
    }
    ranges.swap(ordered);
  }

  // Ranks each range above all that lie in it. These come before it, so the highest rank among them
  // is known when it is ranked.
  void rank_all(const Ranges& ranges) {
    ranks_.assign(ranges.size(), kNothing);
    for (uint32_t index = 0; index < ranges.size(); ++index) {
      Rank& own = ranks_[index];
      const Rank alone = own_rank(ranges[index]);
      ++own.height;
      if (!ranks_below(alone, own)) own = alone;
      const uint32_t parent = parents_[index];
      if (parent < kNotHere && ranks_below(ranks_[parent], own)) ranks_[parent] = own;
    }
  }

  // Selects all ranges whose span the program saw, as many of those that failed as the unit may
  // have, and then those that rank highest.
  void choose(const Ranges& ranges) {
    candidates_.clear();
    candidates_.reserve(ranges.size());
    int64_t forced = 0, failed = 0;
    for (uint32_t index = 0; index < ranges.size(); ++index) {
      const int64_t duration = nests_ ? own_duration(ranges[index]) : ranks_[index].duration;
      is_selected_[index] = duration == kForced ? 1 : 0;
      forced += is_selected_[index];
      failed += duration >= kFailed && duration != kForced ? 1 : 0;
      if (duration >= 0 && duration != kForced) candidates_.emplace_back() = {duration, index};
    }
    const int64_t remaining = std::max<int64_t>(
        {0, bounds_.budget - forced, std::min(failed, bounds_.failed_budget - forced)});
    const auto last =
        candidates_.begin() + std::min(remaining, static_cast<int64_t>(candidates_.size()));
    const auto ranks_higher = [&](const Candidate& one, const Candidate& other) {
      if (one.duration != other.duration) return one.duration > other.duration;
      return ranks_below(rank(ranges, other.index), rank(ranges, one.index));
    };
    std::nth_element(candidates_.begin(), last, candidates_.end(), ranks_higher);
    for (auto one = candidates_.begin(); one != last; ++one) is_selected_[one->index] = 1;
  }

  int64_t own_duration(const Range& one) const {
    if ((one.flags & kExposed) != 0) return kForced;
    const int64_t duration = std::min(one.duration_ns, kFailed - 1);
    if ((one.flags & kError) != 0) return kFailed + duration;
    return duration < bounds_.min_ns || (one.flags & kInCompilation) != 0 ? -1 : duration;
  }
  Rank own_rank(const Range& one) const { return {own_duration(one), one.event_id, 0}; }

  IdIndex ids_;
  UnfilledVector<uint32_t> parents_, selected_;
  std::vector<uint8_t> is_selected_;
  std::vector<Rank> ranks_;  // where not every range ranks above all that lies in it
  UnfilledVector<Candidate> candidates_;
  size_t not_here_ = 0;
  Bounds bounds_{};
  bool nests_ = true;
};

}  // namespace recfn::stage
