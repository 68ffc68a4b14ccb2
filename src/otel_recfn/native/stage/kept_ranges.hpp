// Which ranges of a unit are kept as spans, and what the others lie in. `tests/models/folding.py`
// has the same rules and numbers.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/unfilled.hpp"
#include "model/events.hpp"
#include "stage/range.hpp"

namespace recfn::stage {

constexpr size_t kMaxAwaited = 1 << 16;
// What took less than a thousandth of a unit is no span of its own, unless it failed: a page of the
// unit shows nothing of it.
constexpr int64_t kLeastShare = 1000;
// All that took more is, where that fits and less than a tenth of the time is left out: else a page
// of it may show no operator.
constexpr int64_t kLeftOut = 10;
// In a tree of calls, of a budget this small or smaller, what took less than a fiftieth; but a
// fifth of the budget is used.
constexpr int64_t kFewestShares = 50, kPartOfBudget = 5;
// A range stands out that took at least twice the mean of the others on its path, and five shares:
// it is seen on the page then, and no more than ten do in an ordinary unit.
constexpr int64_t kStandsOut = 2, kSharesOfOne = 5;
constexpr int kMostRounds = 8;  // in which ranges are found that stand out in what stands out
constexpr int64_t kForced = int64_t{1} << 62;  // ranks above every duration
constexpr int64_t kFailed =
    int64_t{1} << 61;  // is added to the duration of a range that failed; others are shorter
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

// Without what else lies in it.
inline bool ranks_above_in_it(const Range& around, const Range& one) {
  if (around.duration_ns != one.duration_ns) return around.duration_ns > one.duration_ns;
  return around.event_id < one.event_id;
}

// How many of a unit's ranges are kept.
struct Bounds {
  int64_t budget;
  int64_t of_failed;  // so many that failed, or in which one did, are kept even where the budget is
                      // smaller
  int64_t least_ns;   // shorter ones are kept only if they failed or were shown, or such a one or a
                      // longer one lies in them
};

// Ranges of a unit beside each other: what lies in what, how they rank, and which are kept.
class Comparison {
 public:
  static constexpr uint32_t kNone = PlacesOfIds::kNone;  // it lies directly in the unit
  static constexpr uint32_t kNotHere = kNone - 1;        // it lies in a range that hasn't come

  // A range that came after its parent, or is asynchronous, has no parent afterwards.
  void compare(Ranges& held, const Bounds& bounds) {
    bounds_ = bounds;
    above_.resize(held.size()), is_kept_.assign(held.size(), 0);
    find_above(held);
    if (bounds.budget > 0 || !nests_) {
      if (!nests_) rank_all(held);
      choose(held);
    }
    list_kept();
  }

  // Also one more, which what it lies in is.
  void keep(uint32_t place) { is_kept_[place] = 1; }

  void list_kept() {
    kept_.clear(),
        kept_.reserve(static_cast<size_t>(std::count(is_kept_.begin(), is_kept_.end(), 1)));
    for (uint32_t place = 0; place < is_kept_.size(); ++place) {
      if (is_kept_[place] != 0) kept_.push_back(place);
    }
  }

  // Whether it is the backward node that the range around it is for.
  bool is_node(const Ranges& held, uint32_t place) const {
    const uint32_t above = above_[place];
    return above < kNotHere && is_node_of(held[above], held[place].name);
  }

  // Whether it is kept, whatever it took.
  static bool comes_first(const Range& one) {
    return (one.flags & (kShown | kError)) != 0 || one.duration_ns >= kFailed;
  }

  size_t size() const { return above_.size(); }
  uint32_t above(size_t place) const {
    return above_[place];
  }  // the place of the range that it lies in
  bool is_kept(size_t place) const { return is_kept_[place] != 0; }
  const UnfilledVector<uint32_t>& kept() const {
    return kept_;
  }  // their places, in ascending order
  Rank rank(const Ranges& held, size_t place) const {
    return nests_ ? own_rank(held[place]) : ranks_[place];
  }
  size_t not_here() const { return not_here_; }  // how many lie in ranges that haven't come

 private:
  struct Candidate {
    int64_t duration;
    uint32_t place;
  };

  // What is around a range comes after it.
  void find_above(Ranges& held) {
    uint32_t* const above_of = above_.data();
    size_t not_here = 0;
    bool nests = true, any_first = false;
    ids_.clear_for(held.size());
    for (auto place = static_cast<uint32_t>(held.size()); place-- > 0;) {
      Range& one = held[place];
      if ((one.flags & kOverlapping) != 0) one.parent = 0;
      any_first |= comes_first(one);
      uint32_t above = one.parent == 0 ? kNone : ids_.find(held, one.parent);
      if (above != kNone) {
        nests &= ranks_above_in_it(held[above], one) &&
                 (held[above].flags & ~one.flags & kInCompilation) == 0;
      } else if (one.parent != 0) {
        above = kNotHere, ++not_here;
      }
      above_of[place] = above;
      ids_.put(held, one.event_id, place);
    }
    not_here_ = not_here, nests_ = nests && !any_first;
    if (not_here > 0) look_again(held);
  }

  // Of what came after the range that it lies in.
  void look_again(Ranges& held) {
    not_here_ = 0;
    for (uint32_t place = 0; place < held.size(); ++place) {
      if (above_[place] != kNotHere) continue;
      const bool missing = ids_.find(held, held[place].parent) == kNone;
      if (missing) ++not_here_;
      if (!missing) held[place].parent = 0, above_[place] = kNone;
    }
  }

  // What lies in a range comes before it, so that the highest rank in it is there when its turn
  // comes.
  void rank_all(const Ranges& held) {
    ranks_.assign(held.size(), kNothing);
    for (uint32_t place = 0; place < held.size(); ++place) {
      Rank& own = ranks_[place];
      const Rank alone = own_rank(held[place]);
      ++own.height;
      if (!ranks_below(alone, own)) own = alone;
      const uint32_t above = above_[place];
      if (above < kNotHere && ranks_below(ranks_[above], own)) ranks_[above] = own;
    }
  }

  // All that were shown, as many of those that failed as the unit may have, and so many that rank
  // highest.
  void choose(const Ranges& held) {
    candidates_.clear(), candidates_.reserve(held.size());
    int64_t forced = 0, failed = 0;
    for (uint32_t place = 0; place < held.size(); ++place) {
      const int64_t duration = nests_ ? own_duration(held[place]) : ranks_[place].duration;
      is_kept_[place] = duration == kForced ? 1 : 0;
      forced += is_kept_[place], failed += duration >= kFailed && duration != kForced ? 1 : 0;
      if (duration >= 0 && duration != kForced) candidates_.emplace_back() = {duration, place};
    }
    const int64_t left = std::max<int64_t>(
        {0, bounds_.budget - forced, std::min(failed, bounds_.of_failed - forced)});
    const auto last =
        candidates_.begin() + std::min(left, static_cast<int64_t>(candidates_.size()));
    const auto is_above = [&](const Candidate& one, const Candidate& other) {
      if (one.duration != other.duration) return one.duration > other.duration;
      return ranks_below(rank(held, other.place), rank(held, one.place));
    };
    std::nth_element(candidates_.begin(), last, candidates_.end(), is_above);
    for (auto one = candidates_.begin(); one != last; ++one) is_kept_[one->place] = 1;
  }

  int64_t own_duration(const Range& one) const {
    if ((one.flags & kShown) != 0) return kForced;
    const int64_t duration = std::min(one.duration_ns, kFailed - 1);
    if ((one.flags & kError) != 0) return kFailed + duration;
    return duration < bounds_.least_ns || (one.flags & kInCompilation) != 0 ? -1 : duration;
  }
  Rank own_rank(const Range& one) const { return {own_duration(one), one.event_id, 0}; }

  PlacesOfIds ids_;
  UnfilledVector<uint32_t> above_, kept_;
  std::vector<uint8_t> is_kept_;
  std::vector<Rank> ranks_;  // where not every range ranks above all that lies in it
  UnfilledVector<Candidate> candidates_;
  size_t not_here_ = 0;
  Bounds bounds_{};
  bool nests_ = true;
};

}  // namespace recfn::stage
