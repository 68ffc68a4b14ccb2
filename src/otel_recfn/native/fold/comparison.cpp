#include "fold/comparison.hpp"

#include <algorithm>

#include "model/events.hpp"

namespace recfn::folding {

void Comparison::compare(std::vector<Range>& held, size_t compared, int64_t min_duration_ns, int64_t budget) {
  places_.assign(held.size(), Place{Rank{}, 0, kNone, true, false});
  candidates_.reserve(held.size());
  index(held);
  find_above(held, compared);
  rank(held, min_duration_ns);
  choose(budget);
}

void Comparison::index(const std::vector<Range>& held) {
  size_t size = 16;
  while (size < 2 * held.size()) size *= 2;
  slots_.assign(size, kNone);
  for (uint32_t place = 0; place < held.size(); ++place) {
    size_t at = scrambled(held[place].event_id) & (size - 1);
    while (slots_[at] != kNone && held[slots_[at]].event_id != held[place].event_id) at = (at + 1) & (size - 1);
    if (slots_[at] == kNone) {
      slots_[at] = place;
    } else {
      places_[place].first = false;
    }
  }
}

uint32_t Comparison::place_of(const std::vector<Range>& held, uint64_t event_id) const {
  size_t at = scrambled(event_id) & (slots_.size() - 1);
  while (slots_[at] != kNone && held[slots_[at]].event_id != event_id) at = (at + 1) & (slots_.size() - 1);
  return slots_[at];
}

// Also what it takes of the time of the range that it lies in.
void Comparison::find_above(std::vector<Range>& held, size_t compared) {
  not_here_ = 0;
  uint64_t last_parent = 0;
  uint32_t last_place = kNone;
  for (uint32_t place = 0; place < held.size(); ++place) {
    Range& one = held[place];
    if ((one.flags & kOverlapping) != 0) one.parent = 0;
    if (one.parent == 0) continue;
    if (one.parent != last_parent) last_parent = one.parent, last_place = place_of(held, one.parent);
    uint32_t& above = places_[place].above = last_place;
    if (above == kNone) {
      above = kNotHere, ++not_here_;
    } else if (above <= place) {
      above = kNone, one.parent = 0;
    } else if (place >= compared && one.parent >> kOrdinalBits == one.event_id >> kOrdinalBits) {
      places_[above].children_ns = sum(places_[above].children_ns, one.duration_ns);
    }
  }
}

// What lies in a range comes before it, so that the highest rank in it is there when its turn comes.
void Comparison::rank(const std::vector<Range>& held, int64_t min_duration_ns) {
  for (size_t place = 0; place < held.size(); ++place) {
    Place& own = places_[place];
    const Range& one = held[place];
    const int64_t duration = (one.flags & kShown) != 0 ? kForced : one.duration_ns;
    const Rank alone{duration < min_duration_ns ? -1 : duration, one.event_id, 0};
    const Rank above_highest{own.rank.duration, own.rank.first, own.rank.height + 1};
    own.rank = !own.first ? Rank{} : ranks_below(alone, above_highest) ? above_highest : alone;
    if (own.above >= kNotHere) continue;
    Rank& highest = places_[own.above].rank;
    if (ranks_below(highest, own.rank)) highest = own.rank;
  }
}

void Comparison::choose(int64_t budget) {
  candidates_.clear();
  kept_ = 0;
  for (uint32_t place = 0; place < places_.size(); ++place) {
    const int64_t duration = places_[place].rank.duration;
    if (duration == kForced) {
      places_[place].kept = true, ++kept_;
    } else if (duration >= 0) {
      candidates_.push_back({duration, place});
    }
  }
  const int64_t left = budget - static_cast<int64_t>(kept_);
  const size_t chosen = left <= 0 ? 0 : std::min(candidates_.size(), static_cast<size_t>(left));
  const auto end = candidates_.begin() + static_cast<std::ptrdiff_t>(chosen);
  const auto is_above = [this](const Candidate& one, const Candidate& other) { return ranks_above(one, other); };
  if (end != candidates_.end()) std::nth_element(candidates_.begin(), end, candidates_.end(), is_above);
  for (auto one = candidates_.begin(); one != end; ++one) places_[one->place].kept = true;
  kept_ += chosen;
}

bool Comparison::ranks_above(const Candidate& one, const Candidate& other) const {
  if (one.duration != other.duration) return one.duration > other.duration;
  return ranks_below(places_[other.place].rank, places_[one.place].rank);
}

}  // namespace recfn::folding
