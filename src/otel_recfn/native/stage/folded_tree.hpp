// What is no span of its own: ranges that were folded into one span, or wait for one, summed up by their path of names below it.
#pragma once
#include <algorithm>
#include <cstdint>

#include "stage/histogram.hpp"
#include "stage/id_table.hpp"
#include "stage/pool.hpp"
#include "stage/range.hpp"

namespace recfn::stage {

// Ranges of one path. Those that lie in it hang below it, in the order in which they came. Times in nanoseconds.
struct Path {
  Path *next, *first_below, *last_below;
  uint32_t name, below;
  Histogram histogram;
  int64_t count, total_ns, self_ns, shortest_ns, longest_ns, first_ns;
  uint64_t first_id;
};

// A folded range that others may link to.
struct Linkable {
  Linkable* next;
  uint64_t event_id;
};

// Belongs to what it was folded into, which gives it back to `Trees`.
struct FoldedTree {
  uint32_t most = kPathsOfASpan;  // paths; what needs more goes to `kOther`
  uint32_t size = 0;
  Path* root = nullptr;  // null where nothing was folded
  Linkable *first_linkable = nullptr, *last_linkable = nullptr;
  int64_t children_ns = 0;  // of a span of a range: how long those took that lay directly in it, in its thread

  // Nothing is in it; the times stay.
  void forget() { size = 0, root = nullptr, first_linkable = last_linkable = nullptr; }
};

// What the trees of all units are made of.
class Trees {
 public:
  // A range that lies in ranges that were added up at `above`, or (null) directly in the span, is added up. Where it is.
  Path* fold(FoldedTree& holder, Path* above, const Range& one, int64_t self_ns) {
    Path& around = above_or_root(holder, above);
    Path* place = find(around, one.name);
    int64_t total_ns = one.duration_ns;
    if (place == nullptr && holder.size < holder.most) {
      place = make_below(holder, around, one.name);
    } else if (place == nullptr) {
      place = other(holder);
      if (&around != holder.root) total_ns = 0;  // what it lies in has its time
    }
    add(*place, one, self_ns, total_ns);
    if ((one.flags & kLinkable) != 0) link(holder, one.event_id);
    return place;
  }
  // What was folded into a range, or waited in it, which is nothing afterwards, was folded into `holder`, and lies at `above`
  // there or (null) directly in the span.
  void merge(FoldedTree& holder, Path* above, FoldedTree& other);
  void give_back(FoldedTree& tree);
  // None is in use.
  void shrink() {
    if (nodes_.shrink()) many_.release();
    windows_.shrink(), linkables_.shrink();
  }

 private:
  // A path below one that has many: it is looked up and not searched.
  struct Edge {
    const Path* above = nullptr;
    Path* path = nullptr;

    static uint64_t key_of(const Path* above, uint32_t name) { return reinterpret_cast<uintptr_t>(above) + name * 0x9E3779B1u; }
    uint64_t key() const { return key_of(above, path->name); }
    bool is_empty() const { return path == nullptr; }
  };
  static constexpr uint32_t kMany = 8;

  // One more range, `total_ns` of which aren't counted elsewhere.
  void add(Path& path, const Range& one, int64_t self_ns, int64_t total_ns) {
    const unsigned digits = digits_of(one.duration_ns);
    if (path.count == 0) path.histogram.clear(digits);
    path.histogram.add(digits, windows_);
    if (one.start_ns < path.first_ns || (one.start_ns == path.first_ns && one.event_id < path.first_id)) {
      path.first_ns = one.start_ns, path.first_id = one.event_id;
    }
    path.shortest_ns = std::min(path.shortest_ns, one.duration_ns);
    path.longest_ns = std::max(path.longest_ns, one.duration_ns);
    ++path.count, path.total_ns = wrapped_sum(path.total_ns, total_ns), path.self_ns = wrapped_sum(path.self_ns, self_ns);
  }

  Path* find(const Path& above, uint32_t name) {
    if (above.below > kMany) {
      const Edge* const found = edge(above, name);
      return found == nullptr ? nullptr : found->path;
    }
    Path* path = above.first_below;
    while (path != nullptr && path->name != name) path = path->next;
    return path;
  }
  Edge* edge(const Path& above, uint32_t name) {
    const auto matches = [&](const Edge& one) { return one.above == &above && one.path->name == name; };
    return many_.find(Edge::key_of(&above, name), matches);
  }

  Path& above_or_root(FoldedTree& holder, Path* above) {
    if (above != nullptr) return *above;
    if (holder.root == nullptr) holder.root = make(kOther);
    return *holder.root;
  }
  Path* make_below(FoldedTree& holder, Path& around, uint32_t name);
  Path* other(FoldedTree& holder);
  void merge_list(Path& place, Path* list, FoldedTree& holder, bool fits);
  void link(FoldedTree& holder, uint64_t event_id);
  void link(FoldedTree& holder, Linkable* first, Linkable* last);

  Path* make(uint32_t name);
  void add(Path& path, Path* other);
  void append(Path& above, Path& path);
  Path* detach_below(Path& above);
  void give_back(Path* path);
  void give_back_all(Path* root);

  Pool<Path> nodes_;
  Pool<Window> windows_;
  Pool<Linkable> linkables_;
  IdTable<Edge> many_;
};

}  // namespace recfn::stage
