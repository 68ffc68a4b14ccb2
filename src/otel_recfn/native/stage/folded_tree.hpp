// What is no span of its own: ranges that were folded into one span, or wait for one, summed up by
// their path of names below it, those of each thread apart.
//
//     FoldedTree of a span ──► root
//                               │ first_child            last_child
//                               └─► layer 3 x ──next──► aten::add 1 x
//                                    │ first_child
//                                    └─► aten::mm 9 x
//
// A path stays where it is until this part of its unit is decided, so that pointers to it hold.
#pragma once
#include <algorithm>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "model/numbers.hpp"
#include "stage/selected_ranges.hpp"
#include "stage/path_table.hpp"

namespace recfn::stage {

// In place of the number of a module's path, or of a scope.
constexpr uint32_t kSeveral = UINT32_MAX;

// Ranges of one path and thread. Those that lie in it hang below it, in the order in which they
// came. Times in nanoseconds.
//
// A path takes three lines of the processor's cache, each for one of its uses: a unit's decision
// passes over all paths several times, which is faster by a tenth if it reads one line of each.
struct alignas(64) Path {
  // Its place in the tree.
  Path *next = nullptr, *first_child = nullptr, *last_child = nullptr;
  uint64_t key = 0;              // as of a range
  uint32_t index = 0, name = 0;  // its place among the unit's paths
  uint32_t below = 0;            // how many hang below it

  // Its sums, and what decides whether it has a span.
  alignas(64) int64_t count = 0;
  int64_t total_ns = 0, self_ns = 0;
  int64_t cpu_time_ns = 0;  // -1: not known of all of them
  int64_t nodes = 0;        // backward nodes that are one with ranges of it
  uint32_t display_name = 0, thread = 0;
  bool is_operator = false;
  bool is_caller = false;       // its ranges only call some that have a span: it has none
  bool in_compilation = false;  // it has no span

  // What its span says of them.
  alignas(64) int64_t shortest_ns = INT64_MAX;
  int64_t longest_ns = 0;
  int64_t first_ns = INT64_MAX, last_ns = INT64_MIN;  // from the first begin to the last end
  uint64_t first_id = UINT64_MAX;
  int64_t first_row = -1;                       // -1: it may be gone
  uint32_t module = 0, modules = 0, scope = 0;  // as of a range; `kSeveral` where they differ

  // The range, if it is of one whose row is there, which is one with no backward node.
  Range only_range() const {
    return {first_id,
            0,
            first_ns,
            total_ns,
            name,
            0,
            first_row,
            display_name,
            module,
            modules,
            0,
            0,
            static_cast<uint8_t>(scope),
            is_operator,
            cpu_time_ns};
  }
};

// Whether the path is shown before another one in the same: that took longer.
inline bool is_longer(const Path& one, const Path& other) {
  if (one.total_ns != other.total_ns) return one.total_ns > other.total_ns;
  return std::tie(one.name, one.key) < std::tie(other.name, other.key);
}

// The sum of two CPU times, -1 if one isn't known.
inline int64_t known_sum(int64_t one, int64_t other) {
  return one < 0 || other < 0 || one > INT64_MAX - other ? -1 : one + other;
}

struct FoldedTree {
  Path* root = nullptr;  // null where nothing was folded
  // Of a span of a range: how long those took that lay directly in it, in its thread.
  int64_t children_ns = 0;
};

// What the trees of a unit are made of.
class Paths {
 public:
  // A range that lies in ranges that were added up at `parent`, or (null) directly in the span, is
  // added up. Where it is.
  Path* fold(FoldedTree& target_tree, Path* parent, const Range& one, int64_t self_ns) {
    Path& enclosing = parent_or_root(target_tree, parent);
    Path* path = find(enclosing, one.path_key());
    if (path == nullptr) {
      path = &make();
      path->key = one.path_key();
      path->name = one.name;
      path->display_name = one.display_name;
      path->thread = one.thread();
      path->is_caller = (one.flags & kOnlyCalls) != 0;
      append(enclosing, *path);
    }
    add(*path, one, self_ns);
    return path;
  }

  // What was folded into a range, or waited in it, which is nothing afterwards, was folded into
  // `target_tree`, and lies at `parent` there or (null) directly in the span. Not by recursion:
  // programs nest deeper than a thread's stack.
  void merge(FoldedTree& target_tree, Path* parent, FoldedTree& other) {
    if (other.root == nullptr) return;
    Path* const root = std::exchange(other.root, nullptr);
    waiting_.push_back({&parent_or_root(target_tree, parent), root->first_child});
    while (!waiting_.empty()) {
      const auto [enclosing, first] = waiting_.back();
      waiting_.pop_back();
      for (Path *path = first, *next; path != nullptr; path = next) {
        next = path->next;
        merge_one(*enclosing, *path);
      }
    }
  }

  // Takes a path out of those below another one, which nothing is added to afterwards.
  static void remove(Path& enclosing, Path& path) {
    Path** link = &enclosing.first_child;
    while (*link != &path) link = &(*link)->next;
    *link = path.next;
  }

  void clear() {
    chunks_.clear();
    count_ = 0;
    table_.clear();
  }

 private:
  // Where there is none of that name, it goes there with all that hangs below it.
  void merge_one(Path& enclosing, Path& path) {
    Path* const mine = find(enclosing, path.key);
    if (mine == nullptr) return append(enclosing, path);
    add(*mine, path);
    waiting_.push_back({mine, path.first_child});
  }

  // One more range.
  void add(Path& path, const Range& one, int64_t self_ns) {
    path.in_compilation |= (one.flags & kInCompilation) != 0;
    note_first(path, one.start_ns, one.event_id, one.row);
    note_shared(path, {one.module, one.modules, one.scope, one.is_operator});
    path.last_ns = std::max(path.last_ns, wrapped_sum(one.start_ns, one.duration_ns));
    path.shortest_ns = std::min(path.shortest_ns, one.duration_ns);
    path.longest_ns = std::max(path.longest_ns, one.duration_ns);
    ++path.count;
    path.nodes += has_node(one) ? 1 : 0;
    path.total_ns = wrapped_sum(path.total_ns, one.duration_ns);
    path.self_ns = wrapped_sum(path.self_ns, self_ns);
    path.cpu_time_ns = known_sum(path.cpu_time_ns, one.cpu_time_ns);
  }

  void add(Path& path, const Path& other) {
    path.in_compilation |= other.in_compilation;
    note_first(path, other.first_ns, other.first_id, other.first_row);
    note_shared(path, {other.module, other.modules, other.scope, other.is_operator});
    path.last_ns = std::max(path.last_ns, other.last_ns);
    path.shortest_ns = std::min(path.shortest_ns, other.shortest_ns);
    path.longest_ns = std::max(path.longest_ns, other.longest_ns);
    path.count += other.count;
    path.nodes += other.nodes;
    path.total_ns = wrapped_sum(path.total_ns, other.total_ns);
    path.self_ns = wrapped_sum(path.self_ns, other.self_ns);
    path.cpu_time_ns = known_sum(path.cpu_time_ns, other.cpu_time_ns);
  }

  static void note_first(Path& path, int64_t start_ns, uint64_t event_id, int64_t row) {
    if (start_ns > path.first_ns || (start_ns == path.first_ns && event_id >= path.first_id)) {
      return;
    }
    path.first_ns = start_ns;
    path.first_id = event_id;
    path.first_row = row;
  }

  // What all ranges of a path may share.
  struct Shared {
    uint32_t module, modules, scope;
    bool is_operator;
  };
  static void note_shared(Path& path, const Shared& more) {
    if (path.count == 0) {
      path.module = more.module;
      path.modules = more.modules;
      path.scope = more.scope;
      path.is_operator = more.is_operator;
      return;
    }
    if (path.module != more.module) path.module = kSeveral;
    if (path.modules != more.modules) path.modules = kSeveral;
    if (path.scope != more.scope) path.scope = kSeveral;
    if (!more.is_operator) path.is_operator = false;
  }

  Path& parent_or_root(FoldedTree& target_tree, Path* parent) {
    if (parent != nullptr) return *parent;
    if (target_tree.root == nullptr) target_tree.root = &make();
    return *target_tree.root;
  }

  // Stays where it is.
  Path& make() {
    if (count_ % kChunk == 0) chunks_.emplace_back().reserve(kChunk);
    Path& path = chunks_.back().emplace_back(Path{});
    path.index = count_++;
    return path;
  }

  // The first few below a path are found one after the other, and only those beyond stand in the
  // table: most paths have no more. Of a tree the root is made first, so that what is at place 0
  // lies in nothing.
  Path* find(const Path& parent, uint64_t key) {
    Path* path = parent.first_child;
    for (uint32_t passed = 0; path != nullptr && passed < kFew; ++passed, path = path->next) {
      if (path->key == key) return path;
    }
    if (path == nullptr) return nullptr;
    const uint32_t index = table_.find(parent.index, key);
    return index == PathTable::kNone ? nullptr : &chunks_[index / kChunk][index % kChunk];
  }

  void append(Path& parent, Path& path) {
    path.next = nullptr;
    (parent.last_child == nullptr ? parent.first_child : parent.last_child->next) = &path;
    parent.last_child = &path;
    if (++parent.below > kFew) table_.insert(parent.index, path.key, path.index);
  }

  static constexpr uint32_t kChunk = 32, kFew = 8;

  std::vector<std::vector<Path>> chunks_;
  uint32_t count_ = 0;
  PathTable table_;
  // To be merged: below what, and the first of a list.
  std::vector<std::pair<Path*, Path*>> waiting_;
};

}  // namespace recfn::stage
