#include "stage/comparison.hpp"

#include <algorithm>

#include "model/events.hpp"
#include "stage/histogram.hpp"

namespace recfn::stage {

void Comparison::compare(Ranges& held, const Bounds& bounds) {
  bounds_ = bounds;
  above_.resize(held.size()), levels_.resize(held.size()), is_kept_.assign(held.size(), 0);
  find_above(held);
  if (bounds.budget > 0 || any_first_) {
    if (!nests_) rank_all(held);
    note_levels(held);
    choose(held);
  }
  list_kept();
}

// What is around a range comes after it.
void Comparison::find_above(Ranges& held) {
  uint32_t* const above_of = above_.data();
  size_t not_here = 0;
  bool nests = true, repeats = false, any_first = false;
  ids_.clear_for(held);
  for (auto place = static_cast<uint32_t>(held.size()); place-- > 0;) {
    Range& one = held[place];
    if ((one.flags & kOverlapping) != 0) one.parent = 0;
    any_first |= comes_first(one);
    uint32_t above = one.parent == 0 ? kNone : ids_.find(held, one.parent);
    if (above != kNone) {
      nests &= ranks_above_in_it(held[above], one);
    } else if (one.parent != 0) {
      above = kNotHere, ++not_here;
    }
    above_of[place] = above;
    repeats |= ids_.put(held, one.event_id, place);
  }
  not_here_ = not_here, repeats_ = repeats, any_first_ = any_first;
  nests_ = nests && !repeats && !any_first;
  if (not_here > 0 || repeats) look_again(held);
}

// Of what came after the range that it lies in; and of several with one id the first one counts.
void Comparison::look_again(Ranges& held) {
  not_here_ = 0;
  for (uint32_t place = 0; place < held.size(); ++place) {
    if (above_[place] != kNotHere && !repeats_) continue;
    Range& one = held[place];
    const uint32_t found = one.parent == 0 ? kNone : ids_.find(held, one.parent);
    const bool missing = one.parent != 0 && found == kNone, later = found != kNone && found > place;
    if (!missing && !later) one.parent = 0;
    not_here_ += missing ? 1 : 0;
    above_[place] = missing ? kNotHere : later ? found : kNone;
  }
}

// What lies in a range comes before it, so that the highest rank in it is there when its turn comes.
void Comparison::rank_all(const Ranges& held) {
  ranks_.assign(held.size(), kNothing);
  for (uint32_t place = 0; place < held.size(); ++place) {
    Rank& own = ranks_[place];
    const Rank alone = own_rank(held[place]);
    ++own.height;
    if (!is_first(held, place)) {
      own = kNothing;
    } else if (!ranks_below(alone, own)) {
      own = alone;
    }
    const uint32_t above = above_[place];
    if (above < kNotHere && ranks_below(ranks_[above], own)) ranks_[above] = own;
    is_kept_[place] = own.duration == kForced ? 1 : 0;
  }
}

void Comparison::note_levels(const Ranges& held) {
  std::fill(of_levels_, of_levels_ + kLevels, 0);
  for (uint32_t place = 0; place < held.size(); ++place) {
    const int64_t duration = nests_ ? own_duration(held[place]) : ranks_[place].duration;
    const unsigned level = duration < 0 || duration == kForced ? 0 : digits_of(duration) + 1;
    levels_[place] = static_cast<uint8_t>(level), ++of_levels_[level];
  }
}

// A higher level ranks higher, so only those of one level have to be compared with each other.
void Comparison::choose(const Ranges& held) {
  size_t left = budget_beside_forced();
  unsigned level = kLevels;  // from here on all are kept
  while (level > 1 && left >= of_levels_[level - 1]) left -= of_levels_[--level];
  candidates_.clear(), candidates_.reserve(level > 1 ? of_levels_[level - 1] : 0);
  for (uint32_t place = 0; place < held.size(); ++place) {
    if (levels_[place] >= level) is_kept_[place] = 1;
    if (levels_[place] != 0 && levels_[place] + 1u == level) {
      candidates_.emplace_back() = {rank(held, place).duration, place};
    }
  }
  const auto last = candidates_.begin() + static_cast<std::ptrdiff_t>(std::min(left, candidates_.size()));
  const auto is_above = [&](const Candidate& one, const Candidate& other) {
    if (one.duration != other.duration) return one.duration > other.duration;
    return ranks_below(rank(held, other.place), rank(held, one.place));
  };
  std::nth_element(candidates_.begin(), last, candidates_.end(), is_above);
  for (auto one = candidates_.begin(); one != last; ++one) is_kept_[one->place] = 1;
}

// Those that failed rank above the others: they are of one level.
size_t Comparison::budget_beside_forced() const {
  const int64_t forced = std::count(is_kept_.begin(), is_kept_.end(), 1);
  const auto failed = static_cast<int64_t>(of_levels_[kFailedLevel]);
  return static_cast<size_t>(std::max<int64_t>({0, bounds_.budget - forced, std::min(failed, bounds_.of_failed - forced)}));
}

void Comparison::list_kept() {
  kept_.clear(), kept_.reserve(static_cast<size_t>(std::count(is_kept_.begin(), is_kept_.end(), 1)));
  for (uint32_t place = 0; place < is_kept_.size(); ++place) {
    if (is_kept_[place] != 0) kept_.push_back(place);
  }
}

}  // namespace recfn::stage
