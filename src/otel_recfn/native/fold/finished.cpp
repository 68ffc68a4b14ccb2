#include "fold/finished.hpp"

#include <algorithm>

namespace recfn::folding {
namespace {

constexpr size_t kCountsOfAPath = 4;  // that there is room for at first

}  // namespace

void FinishedColumns::reserve(size_t more_kept, size_t more_paths) {
  kept.reserve(more_kept), kept_row.reserve(more_kept), kept_unit.reserve(more_kept), kept_parent.reserve(more_kept);
  kept_self_ns.reserve(more_kept), kept_forced.reserve(more_kept);
  path_unit.reserve(more_paths), path_holder.reserve(more_paths), path_above.reserve(more_paths), path_name.reserve(more_paths);
  path_count.reserve(more_paths), path_total_ns.reserve(more_paths), path_self_ns.reserve(more_paths);
  path_shortest_ns.reserve(more_paths), path_longest_ns.reserve(more_paths);
  path_first_ns.reserve(more_paths), path_first_id.reserve(more_paths);
  path_digits.reserve(more_paths), path_counts_end.reserve(more_paths);
  counts.reserve(more_paths * kCountsOfAPath);
}

void FinishedColumns::add_kept(int64_t unit, const Range& one, uint64_t parent, int64_t self_ns, bool forced) {
  kept.add(one.event_id), kept_row.add(one.row), kept_unit.add(unit), kept_parent.add(parent);
  kept_self_ns.add(self_ns), kept_forced.add(forced ? 1 : 0);
}

void FinishedColumns::add_tree(int64_t unit, int64_t holder, const FoldedTree& tree) {
  waiting_.clear();
  if (tree.root != nullptr) push_below(*tree.root, -1);
  while (!waiting_.empty()) {
    const Waiting next = waiting_.back();
    waiting_.pop_back();
    const int64_t place = path_unit.size();
    add_path(unit, holder, next);
    if (next.path->first_below != nullptr) push_below(*next.path, place);
  }
  for (const Linkable* each = tree.first_linkable; each != nullptr; each = each->next) {
    linkable.add(each->event_id), linkable_unit.add(unit), linkable_holder.add(holder);
  }
}

void FinishedColumns::push_below(const Path& path, int64_t above) {
  const auto first = static_cast<std::ptrdiff_t>(waiting_.size());
  for (const Path* each = path.first_below; each != nullptr; each = each->next) waiting_.push_back({each, above});
  if (path.below == 1) return;
  std::sort(waiting_.begin() + first, waiting_.end(), [](const Waiting& one, const Waiting& other) {
    if (one.path->total_ns != other.path->total_ns) return one.path->total_ns < other.path->total_ns;
    return one.path->name > other.path->name;
  });
}

void FinishedColumns::add_path(int64_t unit, int64_t holder, const Waiting& one) {
  const Path& path = *one.path;
  path_unit.add(unit), path_holder.add(holder), path_above.add(one.above), path_name.add(path.name);
  path_count.add(path.count), path_total_ns.add(path.total_ns), path_self_ns.add(path.self_ns);
  path_shortest_ns.add(path.shortest_ns), path_longest_ns.add(path.longest_ns);
  path_first_ns.add(path.first_ns), path_first_id.add(path.first_id);
  path_digits.add(path.histogram.first_digits());
  path.histogram.each([this](int64_t count) { counts.add(count); });
  path_counts_end.add(counts.size());
}

}  // namespace recfn::folding
