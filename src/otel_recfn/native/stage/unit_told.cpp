#include "stage/unit_told.hpp"

#include <algorithm>
#include <tuple>

#include "model/span_id.hpp"
#include "model/wrapping.hpp"

namespace recfn::stage {

void Summaries::append(const Summaries& others) {
  const auto before = static_cast<int64_t>(counts.size());
  for (SummaryRow row : others.rows) {
    row.counts_end += before;
    rows.push_back(row);
  }
  counts.insert(counts.end(), others.counts.begin(), others.counts.end());
}

void UnitTeller::tell(const Unit& unit, const UnitToDecide& wanted, uint32_t place) {
  unit_ = &unit, wanted_ = &wanted, number_ = place;
  kept_ = unit.outermost_first(), first_kept_ = decided_.kept.size();
  left_ = wanted.budget - static_cast<int64_t>(kept_.size()), teller_ = wanted.above.span_id;
  places_.clear(), extents_.clear();
  for (const uint32_t each : kept_) {
    decided_.kept.push_back({unit.kept(each).parent, {0, kNoTrace}, unit.range(each).row, 0, number_});
  }
  tell_tree(unit.folded(), kNone);
  for (size_t holder = 0; holder < kept_.size(); ++holder) {
    tell_tree(unit.kept(kept_[holder]).folded, static_cast<int64_t>(holder));
  }
  choose_further();
  note_telling();
}

void UnitTeller::tell_tree(const FoldedTree& tree, int64_t holder) {
  const size_t first = places_.size();
  place_all(tree, holder);
  if (places_.size() == first) return;
  const size_t longest = sum_up(first, holder);
  if (holder != kNone) {
    decided_.kept[first_kept_ + static_cast<size_t>(holder)].folded = decided_.sums.back().ranges;
  } else if (wanted_->tells_itself == 0) {
    summarize(places_[longest], static_cast<int64_t>(decided_.sums.size()) - 1, decided_.summaries);
    teller_ = extents_.back().span_id;
    --left_;
  }
}

void UnitTeller::place_all(const FoldedTree& tree, int64_t holder) {
  if (tree.root != nullptr) place_below(*tree.root, holder, kNone);
  while (!waiting_.empty()) {
    const Place next = waiting_.back();
    waiting_.pop_back();
    const auto place = static_cast<int64_t>(places_.size());
    places_.push_back(next);
    if (next.path->first_below != nullptr) place_below(*next.path, holder, place);
  }
}

void UnitTeller::place_below(const Path& path, int64_t holder, int64_t above) {
  const auto first = static_cast<std::ptrdiff_t>(waiting_.size());
  for (const Path* each = path.first_below; each != nullptr; each = each->next) waiting_.push_back({each, holder, above, kNone});
  if (path.below <= 1) return;
  std::sort(waiting_.begin() + first, waiting_.end(), [](const Place& one, const Place& other) {
    const Path &first_path = *one.path, &second_path = *other.path;
    if (first_path.total_ns != second_path.total_ns) return first_path.total_ns < second_path.total_ns;
    return first_path.name > second_path.name;
  });
}

// Of a tree, from this place on. Returns the path directly in the holder with the most time. What is told as other ranges only
// where there is nothing else.
size_t UnitTeller::sum_up(size_t first, int64_t holder) {
  int64_t count = 0, duration_ns = 0, most_ns = INT64_MIN;
  size_t longest = first;
  clear_names(places_.size() - first);
  for (size_t place = first; place < places_.size(); ++place) {
    const Path& path = *places_[place].path;
    count += path.count;
    Name& of_name = name_of(path.name, place);
    of_name.count += path.count, of_name.self_ns = wrapped_sum(of_name.self_ns, path.self_ns);
    if (places_[place].above != kNone) continue;
    duration_ns = wrapped_sum(duration_ns, path.total_ns);
    const int64_t time_ns = path.name == kOther ? -1 : path.total_ns;
    if (time_ns > most_ns) most_ns = time_ns, longest = place;
  }
  tell_names();
  const int64_t of_all = holder == kNone ? kNone : static_cast<int64_t>(first_kept_) + holder;
  decided_.sums.push_back({number_, of_all, count, duration_ns, static_cast<int64_t>(decided_.top.size())});
  return longest;
}

void UnitTeller::clear_names(size_t paths) {
  names_.clear();
  size_t slots = 16;
  while (slots < 2 * paths) slots *= 2;
  name_slots_.assign(slots, kNoName);
}

// The names with the most time in themselves; of several the one whose first path comes first.
void UnitTeller::tell_names() {
  const auto last = names_.begin() + static_cast<std::ptrdiff_t>(std::min(names_.size(), kTopNames));
  std::partial_sort(names_.begin(), last, names_.end(), [](const Name& one, const Name& other) {
    return std::tie(other.self_ns, one.first) < std::tie(one.self_ns, other.first);
  });
  for (auto name = names_.begin(); name != last; ++name) decided_.top.push_back({name->count, name->self_ns, name->name});
}

UnitTeller::Name& UnitTeller::name_of(uint32_t name, size_t place) {
  const size_t mask = name_slots_.size() - 1;
  size_t at = (name * 0x9E3779B1u >> 8) & mask;
  while (name_slots_[at] != kNoName && names_[name_slots_[at]].name != name) at = (at + 1) & mask;
  if (name_slots_[at] == kNoName) {
    name_slots_[at] = static_cast<uint32_t>(names_.size());
    names_.push_back({name, place, 0, 0});
  }
  return names_[name_slots_[at]];
}

// The paths that the budget is left for and that took long enough, each after what it lies in.
void UnitTeller::choose_further() {
  const auto budget = static_cast<size_t>(std::max<int64_t>(0, left_));
  std::vector<size_t> chosen;
  for (size_t at = 0; at < places_.size() && budget > 0; ++at) {
    const Path& path = *places_[at].path;
    if (places_[at].summary == kNone && path.name != kOther && path.total_ns >= wanted_->least_ns()) chosen.push_back(at);
  }
  if (chosen.size() > budget) {
    const auto last = chosen.begin() + static_cast<std::ptrdiff_t>(budget);
    std::nth_element(chosen.begin(), last, chosen.end(), [this](size_t one, size_t other) {
      const int64_t first_ns = places_[one].path->total_ns, second_ns = places_[other].path->total_ns;
      return first_ns != second_ns ? first_ns > second_ns : one < other;
    });
    chosen.resize(budget);
    std::sort(chosen.begin(), chosen.end());
  }
  for (const size_t at : chosen) summarize(places_[at], kNone, decided_.further);
}

void UnitTeller::summarize(Place& place, int64_t sums, Summaries& told) {
  const Path& path = *place.path;
  const Extent around = extent_around(place);
  const int64_t duration = std::max<int64_t>(0, std::min(path.total_ns, wrapped_difference(around.end_ns, around.start_ns)));
  const int64_t start = std::min(std::max(path.first_ns, around.start_ns), around.end_ns - duration);
  const Extent own{span_id_of(path.first_id, key_), start, start + duration};
  const unsigned digits = path.histogram.each([&told](uint32_t count) { told.counts.push_back(count); });
  told.rows.push_back({own.span_id, around.span_id, path.first_id, path.count, path.total_ns, path.shortest_ns, path.longest_ns,
                       own.start_ns, own.end_ns, sums, static_cast<int64_t>(told.counts.size()), number_, path.name, digits});
  place.summary = static_cast<int64_t>(extents_.size());
  extents_.push_back(own);
}

// Of the span that a summary is a child of.
UnitTeller::Extent UnitTeller::extent_around(const Place& place) const {
  for (int64_t above = place.above; above != kNone; above = places_[static_cast<size_t>(above)].above) {
    const int64_t summary = places_[static_cast<size_t>(above)].summary;
    if (summary != kNone) return extents_[static_cast<size_t>(summary)];
  }
  if (place.holder == kNone) return {wanted_->above.span_id, wanted_->start_ns, wanted_->end_ns};
  const Range& holder = unit_->range(kept_[static_cast<size_t>(place.holder)]);
  return {span_id_of(holder.event_id, key_), holder.start_ns, wrapped_sum(holder.start_ns, holder.duration_ns)};
}

// The spans that tell of the ranges that others may link to.
void UnitTeller::note_telling() {
  note_telling(unit_->folded(), teller_);
  for (const uint32_t each : kept_) note_telling(unit_->kept(each).folded, span_id_of(unit_->range(each).event_id, key_));
  for (const uint32_t each : kept_) {
    const Range& one = unit_->range(each);
    if ((one.flags & kLinkable) != 0) telling_.add(one.event_id, span_id_of(one.event_id, key_));
  }
}

void UnitTeller::note_telling(const FoldedTree& tree, uint64_t span_id) {
  for (const Linkable* each = tree.first_linkable; each != nullptr; each = each->next) telling_.add(each->event_id, span_id);
}

}  // namespace recfn::stage
