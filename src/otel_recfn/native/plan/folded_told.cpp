#include "plan/folded_told.hpp"

#include "columns/equally_long.hpp"
#include "model/wrapping.hpp"

#include <algorithm>
#include <tuple>

namespace recfn {
namespace {

constexpr uint32_t kOtherName = 0;  // of paths that there was no room for

}  // namespace

bool PathsToTell::take(PyObject* tuple) {
  PyObject* given[8];
  if (!PyArg_ParseTuple(tuple, "OOOOOOOO", &given[0], &given[1], &given[2], &given[3], &given[4], &given[5], &given[6],
                        &given[7])) {
    return false;
  }
  return unit.take(given[0], "path_unit", nullptr) && holder.take(given[1], "path_holder", nullptr) &&
         above.take(given[2], "path_above", nullptr) && name.take(given[3], "path_name", nullptr) &&
         count.take(given[4], "path_count", nullptr) && total_ns.take(given[5], "path_total_ns", nullptr) &&
         self_ns.take(given[6], "path_self_ns", nullptr) && first_ns.take(given[7], "path_first_ns", nullptr) &&
         equally_long({unit.size(), holder.size(), above.size(), name.size(), count.size(), total_ns.size(), self_ns.size(),
                       first_ns.size()});
}

bool FoldedTeller::is_good(size_t path) const {
  const int64_t unit = paths_.unit[path], holder = paths_.holder[path], above = paths_.above[path];
  return unit >= 0 && unit < static_cast<int64_t>(units_.extents.size()) && holder < static_cast<int64_t>(kept_.size()) &&
         above < static_cast<int64_t>(path);
}

bool FoldedTeller::tell() {
  shown_.assign(paths_.size(), kNotShown);
  left_.clear();
  for (Py_ssize_t unit = 0; unit < units_.budget.size(); ++unit) left_.push_back(units_.budget[unit]);
  for (size_t first = 0, last; first < paths_.size(); first = last) {
    last = end_of_holder(first);
    if (last == first) return false;
    const size_t longest = sum_up(first, last);
    if (paths_.holder[first] >= 0 || units_.tells_itself[paths_.unit[first]] != 0) continue;
    summarize(longest, static_cast<int64_t>(told_.unit.size()) - 1);
    --left_[static_cast<size_t>(paths_.unit[first])];
  }
  choose();
  for (const size_t path : chosen_) summarize(path, -1);
  return true;
}

// The same path where one of its paths indexes nothing.
size_t FoldedTeller::end_of_holder(size_t first) const {
  const int64_t unit = paths_.unit[first], holder = paths_.holder[first];
  size_t last = first;
  for (; last < paths_.size() && paths_.unit[last] == unit && paths_.holder[last] == holder; ++last) {
    if (!is_good(last)) return first;
  }
  return last;
}

// The path directly in the holder with the most time. What is told as other ranges only where there is nothing else.
size_t FoldedTeller::sum_up(size_t first, size_t last) {
  int64_t count = 0, duration_ns = 0, most_ns = INT64_MIN;
  size_t longest = first;
  clear_names(last - first);
  for (size_t path = first; path < last; ++path) {
    const int64_t own = paths_.count[path], total_ns = paths_.total_ns[path];
    const uint32_t name = paths_.name[path];
    count += own;
    Name& of_name = name_of(name, path);
    of_name.count += own, of_name.self_ns = wrapped_sum(of_name.self_ns, paths_.self_ns[path]);
    if (paths_.above[path] >= 0) continue;
    duration_ns = wrapped_sum(duration_ns, total_ns);
    const int64_t time_ns = name == kOtherName ? -1 : total_ns;
    if (time_ns > most_ns) most_ns = time_ns, longest = path;
  }
  tell_names();
  told_.unit.push_back(paths_.unit[first]), told_.holder.push_back(paths_.holder[first]);
  told_.count.push_back(count), told_.duration_ns.push_back(duration_ns);
  told_.top_end.push_back(static_cast<int64_t>(told_.top_name.size()));
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
  const size_t told = std::min(names, top_names_);
  std::partial_sort(names_.begin(), names_.begin() + static_cast<std::ptrdiff_t>(told),
                    names_.begin() + static_cast<std::ptrdiff_t>(names), [](const Name& one, const Name& other) {
                      return std::tie(other.self_ns, one.first) < std::tie(one.self_ns, other.first);
                    });
  for (size_t at = 0; at < told; ++at) {
    told_.top_name.push_back(names_[at].name);
    told_.top_count.push_back(names_[at].count), told_.top_self_ns.push_back(names_[at].self_ns);
  }
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
  std::vector<std::vector<Candidate>> by_unit(units_.extents.size());
  for (size_t path = 0; path < paths_.size(); ++path) {
    const auto unit = static_cast<size_t>(paths_.unit[path]);
    if (left_[unit] <= 0 || shown_[path] != kNotShown || paths_.name[path] == kOtherName) continue;
    if (paths_.total_ns[path] < units_.least_ns[paths_.unit[path]]) continue;
    by_unit[unit].push_back({paths_.total_ns[path], path});
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

void FoldedTeller::summarize(size_t path, int64_t sums) {
  int64_t above = paths_.above[path];
  while (above >= 0 && shown_[static_cast<size_t>(above)] < 0) above = paths_.above[above];
  int64_t begin, end;
  if (above >= 0) {
    const auto parent = static_cast<size_t>(shown_[static_cast<size_t>(above)]);
    begin = told_.start_ns[parent], end = told_.end_ns[parent];
  } else {
    const int64_t holder = paths_.holder[path];
    const Extents& around = holder >= 0 ? kept_ : units_.extents;
    const int64_t place = holder >= 0 ? holder : paths_.unit[path];
    begin = around.start_ns[place], end = around.end_ns[place];
  }
  const int64_t duration = std::max<int64_t>(0, std::min(paths_.total_ns[path], end - begin));
  const int64_t start = std::min(std::max(paths_.first_ns[path], begin), end - duration);
  shown_[path] = static_cast<int64_t>(told_.path.size());
  told_.path.push_back(static_cast<int64_t>(path)), told_.parent.push_back(std::max<int64_t>(above, -1));
  told_.start_ns.push_back(start), told_.end_ns.push_back(start + duration), told_.sums.push_back(sums);
}

}  // namespace recfn
