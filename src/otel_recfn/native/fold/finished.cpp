#include "fold/finished.hpp"

#include <algorithm>

namespace recfn::folding {
namespace {

constexpr size_t kCountsOfAPath = 4;  // that there is room for at first

}  // namespace

bool FinishedColumns::comes_later(const Waiting& one, const Waiting& other) {
  return one.total_ns != other.total_ns ? one.total_ns < other.total_ns : one.path->name > other.path->name;
}

void FinishedColumns::make_room(size_t kept_rows, size_t path_rows) {
  kept.reserve(kept_rows);
  paths.reserve(path_rows);
  counts.reserve(path_rows * kCountsOfAPath);
}

void FinishedColumns::add_tree(int64_t unit, int64_t holder, const FoldedTree& tree) {
  waiting_.clear();
  if (tree.root != nullptr) push_below(*tree.root, -1);
  while (!waiting_.empty()) {
    const Waiting next = waiting_.back();
    waiting_.pop_back();
    const auto place = static_cast<int64_t>(paths.size());
    add_path(unit, holder, next);
    if (next.path->first_below != nullptr) push_below(*next.path, place);
  }
  for (const Linkable* each = tree.first_linkable; each != nullptr; each = each->next) {
    linkable.push_back({each->event_id, unit, holder});
  }
}

void FinishedColumns::push_below(const Path& path, int64_t above) {
  const auto first = static_cast<std::ptrdiff_t>(waiting_.size());
  for (const Path* each = path.first_below; each != nullptr; each = each->next) waiting_.push_back({each, each->total_ns, above});
  if (path.below > 1) std::sort(waiting_.begin() + first, waiting_.end(), comes_later);
}

void FinishedColumns::add_path(int64_t unit, int64_t holder, const Waiting& one) {
  const Path& path = *one.path;
  const unsigned digits = path.histogram.each([this](uint32_t count) { counts.push_back({count}); });
  paths.push_back({unit, holder, one.above, path.count, path.total_ns, path.self_ns, path.shortest_ns, path.longest_ns,
                   path.first_ns, path.first_id, digits, static_cast<int64_t>(counts.size()),
                   path.name});
}

}  // namespace recfn::folding
