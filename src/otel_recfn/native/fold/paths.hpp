// Sums of ranges by the path of names below a span: nodes that hang below each other in the order in which they came.
#pragma once
#include <algorithm>
#include <cstdint>

#include "fold/histogram.hpp"
#include "fold/id_table.hpp"
#include "fold/pool.hpp"
#include "fold/range.hpp"

namespace recfn::folding {

// Ranges of one path. Times in nanoseconds.
struct Path {
  Path *next, *first_below, *last_below;
  uint32_t name, below;
  Histogram histogram;
  int64_t count, total_ns, self_ns, shortest_ns, longest_ns, first_ns;
  uint64_t first_id;
};

// All nodes of a fold, whatever tree they belong to.
class Paths {
 public:
  Path* make(uint32_t name);
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
  // Also gives the other one back.
  void add(Path& path, Path* other);
  void give_back(Path* path) {
    path->histogram.give_back_windows(windows_);
    nodes_.give_back(path);
  }
  Path* find(const Path& above, uint32_t name) {
    if (above.below > kMany) return find_edge(above, name);
    Path* path = above.first_below;
    while (path != nullptr && path->name != name) path = path->next;
    return path;
  }
  void append(Path& above, Path& path);
  // What hangs below it, as a list, hangs below it no more.
  Path* detach_below(Path& above);
  // With all that hangs below it.
  void give_back_tree(Path* root);
  // None is in use.
  void shrink() {
    if (nodes_.shrink()) many_.release();
    windows_.shrink();
  }

 private:
  // A node below one that has many: it is looked up and not searched.
  struct Edge {
    const Path* above = nullptr;
    Path* path = nullptr;
  };
  static uint64_t edge_key(const Path* above, uint32_t name) { return reinterpret_cast<uintptr_t>(above) + name * 0x9E3779B1u; }
  struct EdgeKey {
    static uint64_t key(const Edge& edge) { return edge_key(edge.above, edge.path->name); }
    static bool is_empty(const Edge& edge) { return edge.path == nullptr; }
  };
  static constexpr uint32_t kMany = 8;

  Edge* edge(const Path& above, uint32_t name) {
    return many_.find(edge_key(&above, name), [&](const Edge& one) { return one.above == &above && one.path->name == name; });
  }
  Path* find_edge(const Path& above, uint32_t name) {
    const Edge* found = edge(above, name);
    return found == nullptr ? nullptr : found->path;
  }

  Pool<Path> nodes_;
  Pool<Window> windows_;
  IdTable<Edge, EdgeKey> many_;
};

}  // namespace recfn::folding
