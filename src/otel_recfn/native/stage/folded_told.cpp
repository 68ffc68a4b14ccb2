#include "stage/folded_told.hpp"

#include <algorithm>
#include <tuple>

#include "model/wrapping.hpp"

namespace recfn::stage {

void FoldedTeller::tell() {
  shown_.assign(done_.paths.size(), kNotShown);
  for (const UnitToDecide& unit : units_) left_.push_back(unit.budget);
  for (const folding::KeptRow& kept : done_.kept) --left_[static_cast<size_t>(kept.unit)];
  for (size_t first = 0, last; first < done_.paths.size(); first = last) {
    last = end_of_holder(first);
    const size_t longest = sum_up(first, last);
    const auto unit = static_cast<size_t>(done_.paths[first].unit);
    if (done_.paths[first].holder >= 0 || units_[unit].tells_itself != 0) continue;
    summarize(longest, static_cast<int64_t>(sums.size()) - 1);
    --left_[unit];
  }
  choose();
  for (const size_t path : chosen_) summarize(path, -1);
}

size_t FoldedTeller::end_of_holder(size_t first) const {
  const auto is_of_it = [this, first](size_t path) {
    return done_.paths[path].unit == done_.paths[first].unit && done_.paths[path].holder == done_.paths[first].holder;
  };
  size_t last = first;
  while (last < done_.paths.size() && is_of_it(last)) ++last;
  return last;
}

// The path directly in the holder with the most time. What is told as other ranges only where there is nothing else.
size_t FoldedTeller::sum_up(size_t first, size_t last) {
  int64_t count = 0, duration_ns = 0, most_ns = INT64_MIN;
  size_t longest = first;
  clear_names(last - first);
  for (size_t path = first; path < last; ++path) {
    const int64_t own = done_.paths[path].count, total_ns = done_.paths[path].total_ns;
    const uint32_t name = done_.paths[path].name;
    count += own;
    Name& of_name = name_of(name, path);
    of_name.count += own, of_name.self_ns = wrapped_sum(of_name.self_ns, done_.paths[path].self_ns);
    if (done_.paths[path].above >= 0) continue;
    duration_ns = wrapped_sum(duration_ns, total_ns);
    const int64_t time_ns = name == folding::kOther ? -1 : total_ns;
    if (time_ns > most_ns) most_ns = time_ns, longest = path;
  }
  tell_names();
  const auto top_end = static_cast<int64_t>(top.size());
  sums.push_back({done_.paths[first].unit, done_.paths[first].holder, count, duration_ns, top_end});
  return longest;
}

void FoldedTeller::clear_names(size_t paths) {
  names_.clear();
  size_t slots = 16;
  while (slots < 2 * paths) slots *= 2;
  name_slots_.assign(slots, kNoName);
}

// The names with the most time in themselves; of several the one whose first path comes first.
void FoldedTeller::tell_names() {
  const size_t names = names_.size();
  const size_t told_names = std::min(names, kTopNames);
  std::partial_sort(names_.begin(), names_.begin() + static_cast<std::ptrdiff_t>(told_names),
                    names_.begin() + static_cast<std::ptrdiff_t>(names), [](const Name& one, const Name& other) {
                      return std::tie(other.self_ns, one.first) < std::tie(one.self_ns, other.first);
                    });
  for (size_t at = 0; at < told_names; ++at) top.push_back({names_[at].count, names_[at].self_ns, names_[at].name});
}

FoldedTeller::Name& FoldedTeller::name_of(uint32_t name, size_t path) {
  const size_t mask = name_slots_.size() - 1;
  size_t at = (name * 0x9E3779B1u >> 8) & mask;
  while (name_slots_[at] != kNoName && names_[name_slots_[at]].name != name) at = (at + 1) & mask;
  if (name_slots_[at] == kNoName) {
    name_slots_[at] = static_cast<uint32_t>(names_.size());
    names_.push_back({name, path, 0, 0});
  }
  return names_[name_slots_[at]];
}

// The paths that the budgets are left for and that took long enough, each after what it lies in.
void FoldedTeller::choose() {
  std::vector<std::vector<Candidate>> by_unit(units_.size());
  for (size_t path = 0; path < done_.paths.size(); ++path) {
    const auto unit = static_cast<size_t>(done_.paths[path].unit);
    if (left_[unit] <= 0 || shown_[path] != kNotShown || done_.paths[path].name == folding::kOther) continue;
    if (done_.paths[path].total_ns < units_[unit].least_ns()) continue;
    by_unit[unit].push_back({done_.paths[path].total_ns, path});
  }
  for (size_t unit = 0; unit < by_unit.size(); ++unit) {
    choose_of_unit(by_unit[unit], static_cast<size_t>(std::max<int64_t>(0, left_[unit])));
  }
  std::sort(chosen_.begin(), chosen_.end());
}

void FoldedTeller::choose_of_unit(std::vector<Candidate>& paths, size_t budget) {
  if (paths.size() > budget) {
    std::nth_element(paths.begin(), paths.begin() + static_cast<std::ptrdiff_t>(budget), paths.end(),
                     [](const Candidate& one, const Candidate& other) {
                       return one.total_ns != other.total_ns ? one.total_ns > other.total_ns : one.path < other.path;
                     });
    paths.resize(budget);
  }
  for (const Candidate& one : paths) chosen_.push_back(one.path);
}

void FoldedTeller::summarize(size_t path, int64_t sums_told) {
  const folding::PathRow& one = done_.paths[path];
  int64_t above = one.above;
  while (above >= 0 && shown_[static_cast<size_t>(above)] < 0) above = done_.paths[static_cast<size_t>(above)].above;
  int64_t begin, end;
  if (above >= 0) {
    const ToldPath& parent = told[static_cast<size_t>(shown_[static_cast<size_t>(above)])];
    begin = parent.start_ns, end = parent.end_ns;
  } else if (one.holder >= 0) {
    const folding::KeptRow& holder = done_.kept[static_cast<size_t>(one.holder)];
    begin = holder.start_ns, end = wrapped_sum(holder.start_ns, holder.duration_ns);
  } else {
    const UnitToDecide& unit = units_[static_cast<size_t>(one.unit)];
    begin = unit.start_ns, end = unit.end_ns;
  }
  const int64_t duration = std::max<int64_t>(0, std::min(one.total_ns, wrapped_difference(end, begin)));
  const int64_t start = std::min(std::max(one.first_ns, begin), end - duration);
  shown_[path] = static_cast<int64_t>(told.size());
  told.push_back({path, std::max<int64_t>(above, -1), start, start + duration, sums_told});
}

}  // namespace recfn::stage
