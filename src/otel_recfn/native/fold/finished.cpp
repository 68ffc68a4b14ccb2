#include "fold/finished.hpp"

#include <algorithm>

namespace recfn::folding {
namespace {

constexpr size_t kCountsOfAPath = 4;   // that there is room for at first
constexpr size_t kMostRoom = 1 << 15;  // of rows for units to come

// Powers of two, so that memory that was given back fits the next time: new pages cost as much as what is written to them.
template <typename Row>
void make_room(UnfilledVector<Row>& table, size_t rows, size_t units) {
  if (table.capacity() - table.size() >= rows) return;
  size_t room = 64;
  while (room < table.size() + std::max(rows, std::min(rows * units, kMostRoom))) room *= 2;
  table.reserve(room);
}

}  // namespace

bool FinishedColumns::comes_later(const Waiting& one, const Waiting& other) {
  return one.total_ns != other.total_ns ? one.total_ns < other.total_ns : one.path->name > other.path->name;
}

void FinishedColumns::make_room(size_t kept_rows, size_t path_rows, size_t units) {
  folding::make_room(kept, kept_rows, units);
  folding::make_room(paths, path_rows, units);
  folding::make_room(counts, path_rows * kCountsOfAPath, units);
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
  for (const Path* each = path.first_below; each != nullptr; each = each->next) {
    waiting_.emplace_back() = {each, each->total_ns, above};
  }
  if (path.below > 1) std::sort(waiting_.begin() + first, waiting_.end(), comes_later);
}

void FinishedColumns::add_path(int64_t unit, int64_t holder, const Waiting& one) {
  const Path& path = *one.path;
  const unsigned digits = path.histogram.each([this](uint32_t count) { counts.push_back(count); });
  paths.emplace_back() = {unit, holder, one.above, path.count, path.total_ns, path.self_ns, path.shortest_ns, path.longest_ns,
                          path.first_ns, path.first_id, static_cast<int64_t>(counts.size()), path.name, digits};
}

}  // namespace recfn::folding
