#include "fold/comparison.hpp"

#include <algorithm>

#include "model/events.hpp"

namespace recfn::folding {

void Comparison::compare(std::vector<Range>& held, size_t compared, int64_t min_duration_ns, int64_t budget) {
  places_.assign(held.size(), Place{Rank{}, 0, kNone, true, false});
  candidates_.clear(), candidates_.reserve(held.size());
  kept_ = not_here_ = 0, last_parent_ = 0;
  ids_.index(held, [this](uint32_t place) { places_[place].first = false; });
  ranks_matter_ = budget > 0 || std::any_of(held.begin(), held.end(), [](const Range& one) { return (one.flags & kShown) != 0; });
  for (uint32_t place = 0; place < held.size(); ++place) look_at(held, place, compared, min_duration_ns);
  if (ranks_matter_) choose(budget);
}

// What lies in a range comes before it, so that the highest rank in it is there when its turn comes.
void Comparison::look_at(std::vector<Range>& held, uint32_t place, size_t compared, int64_t min_duration_ns) {
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

uint32_t Comparison::find_above(std::vector<Range>& held, uint32_t place) {
  Range& one = held[place];
  if ((one.flags & kOverlapping) != 0) one.parent = 0;
  if (one.parent == 0) return kNone;
  if (one.parent != last_parent_) last_parent_ = one.parent, last_above_ = ids_.find(held, one.parent);
  if (last_above_ == kNone) return ++not_here_, kNotHere;
  if (last_above_ > place) return last_above_;
  one.parent = 0;
  return kNone;
}

void Comparison::rank(const Range& one, uint32_t place, int64_t min_duration_ns) {
  Place& own = places_[place];
  const int64_t duration = (one.flags & kShown) != 0 ? kForced : one.duration_ns;
  const Rank alone{duration < min_duration_ns ? -1 : duration, one.event_id, 0};
  const Rank above_highest{own.rank.duration, own.rank.first, own.rank.height + 1};
  own.rank = !own.first ? Rank{} : ranks_below(alone, above_highest) ? above_highest : alone;
  if (own.rank.duration == kForced) {
    own.kept = true, ++kept_;
  } else if (own.rank.duration >= 0) {
    candidates_.push_back({own.rank.duration, place});
  }
}

void Comparison::choose(int64_t budget) {
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
