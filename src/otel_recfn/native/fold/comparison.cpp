#include "fold/comparison.hpp"

#include <algorithm>

#include "fold/histogram.hpp"
#include "model/events.hpp"

namespace recfn::folding {

inline void Comparison::begin(Place& own, bool first) {
  own.rank = kNothing;
  own.children_ns = 0, own.above = kNone, own.first = first;
}

inline uint32_t Comparison::find_above(Ranges& held, uint32_t place) {
  Range& one = held[place];
  if ((one.flags & kOverlapping) != 0) one.parent = 0;
  if (one.parent == 0) return kNone;
  if (one.parent != last_parent_) last_parent_ = one.parent, last_above_ = ids_.find(held, one.parent);
  if (last_above_ == kNone) return ++not_here_, kNotHere;
  if (last_above_ > place) return last_above_;
  one.parent = 0;
  return kNone;
}

// Above whatever lies in it. Field by field: a rank that was just written in parts is slow to read as a whole.
inline void Comparison::rank(const Range& one, uint32_t place, int64_t min_duration_ns) {
  Place& own = places_[place];
  const int64_t duration = (one.flags & kShown) != 0 ? kForced : one.duration_ns;
  const Rank alone{duration < min_duration_ns ? -1 : duration, one.event_id, 0};
  ++own.rank.height;
  if (!own.first) {
    own.rank = kNothing;
  } else if (!ranks_below(alone, own.rank)) {
    own.rank.duration = alone.duration, own.rank.first = alone.first, own.rank.height = 0;
  }
  if (own.rank.duration == kForced) {
    keep(place);
  } else if (own.rank.duration >= 0) {
    candidates_.emplace_back() = {own.rank.duration, place};
    ++of_digits_[digits_of(own.rank.duration)];
  }
}

// What lies in a range comes before it, so that the highest rank in it is there when its turn comes.
inline void Comparison::look_at(Ranges& held, uint32_t place, size_t compared, int64_t min_duration_ns) {
  const Range& one = held[place];
  Place& own = places_[place];
  own.above = find_above(held, place);
  if (ranks_matter_) rank(one, place, min_duration_ns);
  if (own.above >= kNotHere) return;
  Place& around = places_[own.above];
  if (ranks_matter_ && ranks_below(around.rank, own.rank)) around.rank = own.rank;
  const bool takes_time = place >= compared && one.parent >> kOrdinalBits == one.event_id >> kOrdinalBits;
  if (takes_time) around.children_ns = sum(around.children_ns, one.duration_ns);
}

void Comparison::compare(Ranges& held, size_t compared, int64_t min_duration_ns, int64_t budget) {
  places_.resize(held.size()), is_kept_.assign(held.size(), 0);
  candidates_.clear(), candidates_.reserve(held.size());
  std::fill(of_digits_, of_digits_ + kDigits, 0);
  kept_ = not_here_ = 0, last_parent_ = 0;
  ids_.index(held, [this](uint32_t place, bool first) { begin(places_[place], first); });
  ranks_matter_ = budget > 0 || std::any_of(held.begin(), held.end(), [](const Range& one) { return (one.flags & kShown) != 0; });
  for (uint32_t place = 0; place < held.size(); ++place) look_at(held, place, compared, min_duration_ns);
  if (ranks_matter_) choose(budget);
}

// More binary digits rank above fewer. So only those of one number of digits have to be compared with each other.
void Comparison::choose(int64_t budget) {
  size_t left = static_cast<size_t>(std::max<int64_t>(0, budget - static_cast<int64_t>(kept_)));
  unsigned digits = kDigits;
  while (digits > 0 && left >= of_digits_[digits - 1]) left -= of_digits_[--digits];
  auto end = candidates_.begin();
  for (const Candidate& one : candidates_) {
    const unsigned own = digits_of(one.duration);
    if (own >= digits) keep(one.place);
    if (own + 1 == digits) *end++ = one;
  }
  const auto last = candidates_.begin() + static_cast<std::ptrdiff_t>(digits > 0 ? left : 0);
  const auto is_above = [this](const Candidate& one, const Candidate& other) { return ranks_above(one, other); };
  std::nth_element(candidates_.begin(), last, end, is_above);
  for (auto one = candidates_.begin(); one != last; ++one) keep(one->place);
}

bool Comparison::ranks_above(const Candidate& one, const Candidate& other) const {
  if (one.duration != other.duration) return one.duration > other.duration;
  return ranks_below(places_[other.place].rank, places_[one.place].rank);
}

}  // namespace recfn::folding
