// What is no span of its own: ranges that were folded into one span, or wait for one, summed up by
// their path of names below it.
#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "model/numbers.hpp"
#include "stage/kept_ranges.hpp"
#include "stage/path_table.hpp"

namespace recfn::stage {

constexpr uint32_t kSeveral = UINT32_MAX;  // in place of the number of a module's path

// Ranges of one path. Those that lie in it hang below it, in the order in which they came. Times in
// nanoseconds.
struct Path {
  Path *next = nullptr, *first_below = nullptr, *last_below = nullptr;
  Path* home = nullptr;  // where those hang that lie in it: of a backward node in the range around
                         // it, that; else itself
  uint32_t place = 0, name = 0, shown = 0;  // its place among the unit's paths
  uint32_t below = 0;                       // how many hang below it
  uint32_t module = 0, modules = 0;         // as of a range; `kSeveral` where they differ
  bool in_compilation = false;              // it has no span
  int64_t count = 0, total_ns = 0, self_ns = 0, shortest_ns = INT64_MAX, longest_ns = 0,
          first_ns = INT64_MAX;
  int64_t cpu_time_ns = 0;  // -1: not known of all of them
  uint64_t first_id = UINT64_MAX;
  int64_t first_row = -1;  // -1: it may be gone
};

// The sum of two CPU times, -1 if one isn't known.
inline int64_t sum_of_known(int64_t one, int64_t other) {
  return one < 0 || other < 0 || one > INT64_MAX - other ? -1 : one + other;
}

struct FoldedTree {
  Path* root = nullptr;  // null where nothing was folded
  int64_t children_ns =
      0;  // of a span of a range: how long those took that lay directly in it, in its thread
};

// What the trees of a unit are made of.
class Paths {
 public:
  // A range that lies in ranges that were added up at `above`, or (null) directly in the span, is
  // added up. Where it is.
  Path* fold(FoldedTree& holder, Path* above, const Range& one, int64_t self_ns) {
    Path& around = above_or_root(holder, above);
    Path* place = find(around, one.name);
    if (place == nullptr) append(around, *(place = &make(one.name, one.shown)));
    add(*place, one, self_ns);
    return place;
  }

  // The range around a backward node that is shown by the node's span, of which it is a part.
  void fold_around_node(FoldedTree& holder, const Range& one) {
    const int64_t self_ns = (one.flags & kOverlapping) != 0
                                ? 0
                                : wrapped_difference(one.duration_ns, holder.children_ns);
    Path& path = *fold(holder, nullptr, one, self_ns);
    path.total_ns = wrapped_difference(path.total_ns, one.duration_ns);
  }

  // What was folded into a range, or waited in it, which is nothing afterwards, was folded into
  // `holder`, and lies at `above` there or (null) directly in the span. Not by recursion: programs
  // nest deeper than a thread's stack.
  void merge(FoldedTree& holder, Path* above, FoldedTree& other) {
    if (other.root == nullptr) return;
    Path* const root = std::exchange(other.root, nullptr);
    waiting_.push_back({&above_or_root(holder, above), root->first_below});
    while (!waiting_.empty()) {
      const auto [around, first] = waiting_.back();
      waiting_.pop_back();
      for (Path *path = first, *next; path != nullptr; path = next) {
        next = path->next;
        merge_one(*around, *path);
      }
    }
  }

  void clear() { chunks_.clear(), count_ = 0, table_.clear(); }

 private:
  // Where there is none of that name, it goes there with all that hangs below it.
  void merge_one(Path& around, Path& path) {
    Path* const mine = find(around, path.name);
    if (mine == nullptr) append(around, path);
    if (mine != nullptr) add(*mine, path);
    Path& home = *(mine == nullptr ? path : *mine).home;
    if (&home == &path) return;
    waiting_.push_back({&home, std::exchange(path.first_below, nullptr)});
    path.last_below = nullptr, path.below = 0;
  }

  // One more range.
  void add(Path& path, const Range& one, int64_t self_ns) {
    path.in_compilation |= (one.flags & kInCompilation) != 0;
    note_first(path, one.start_ns, one.event_id, one.row);
    note_module(path, one.module, one.modules);
    path.shortest_ns = std::min(path.shortest_ns, one.duration_ns);
    path.longest_ns = std::max(path.longest_ns, one.duration_ns);
    ++path.count;
    path.total_ns = wrapped_sum(path.total_ns, one.duration_ns),
    path.self_ns = wrapped_sum(path.self_ns, self_ns);
    path.cpu_time_ns = sum_of_known(path.cpu_time_ns, one.cpu_time_ns);
  }

  void add(Path& path, const Path& other) {
    path.in_compilation |= other.in_compilation;
    note_first(path, other.first_ns, other.first_id, other.first_row);
    note_module(path, other.module, other.modules);
    path.shortest_ns = std::min(path.shortest_ns, other.shortest_ns);
    path.longest_ns = std::max(path.longest_ns, other.longest_ns);
    path.count += other.count;
    path.total_ns = wrapped_sum(path.total_ns, other.total_ns),
    path.self_ns = wrapped_sum(path.self_ns, other.self_ns);
    path.cpu_time_ns = sum_of_known(path.cpu_time_ns, other.cpu_time_ns);
  }

  static void note_first(Path& path, int64_t start_ns, uint64_t event_id, int64_t row) {
    if (start_ns > path.first_ns || (start_ns == path.first_ns && event_id >= path.first_id))
      return;
    path.first_ns = start_ns, path.first_id = event_id, path.first_row = row;
  }
  static void note_module(Path& path, uint32_t module, uint32_t modules) {
    path.module = path.count == 0 || path.module == module ? module : kSeveral;
    path.modules = path.count == 0 || path.modules == modules ? modules : kSeveral;
  }

  Path& above_or_root(FoldedTree& holder, Path* above) {
    if (above != nullptr) return *above->home;
    if (holder.root == nullptr) holder.root = &make(kNoName, kNoName);
    return *holder.root;
  }

  // Stays where it is.
  Path& make(uint32_t name, uint32_t shown) {
    if (count_ % kChunk == 0) chunks_.emplace_back().reserve(kChunk);
    Path& path = chunks_.back().emplace_back(Path{});
    path.home = &path, path.place = count_++, path.name = name, path.shown = shown;
    return path;
  }

  // The first few below a path are found one after the other, and only those beyond stand in the
  // table: most paths have no more. Of a tree the root is made first, so that what is at place 0
  // lies in nothing.
  Path* find(const Path& above, uint32_t name) {
    Path* path = above.first_below;
    for (uint32_t passed = 0; path != nullptr && passed < kFew; ++passed, path = path->next) {
      if (path->name == name) return path;
    }
    if (path == nullptr) return nullptr;
    const uint32_t place = table_.find(above.place, name);
    return place == PathTable::kNone ? nullptr : &chunks_[place / kChunk][place % kChunk];
  }

  void append(Path& above, Path& path) {
    path.next = nullptr, path.home = is_node_of(above, path.name) ? &above : &path;
    (above.last_below == nullptr ? above.first_below : above.last_below->next) = &path;
    above.last_below = &path;
    if (++above.below > kFew) table_.insert(above.place, path.name, path.place);
  }

  static constexpr uint32_t kChunk = 32, kFew = 8;

  std::vector<std::vector<Path>> chunks_;
  uint32_t count_ = 0;
  PathTable table_;
  std::vector<std::pair<Path*, Path*>>
      waiting_;  // to be merged: below what, and the first of a list
};

}  // namespace recfn::stage
