// What is no span of its own: ranges that were folded into one span, or wait for one, summed up by their path of names below it.
#pragma once
#include <algorithm>
#include <cstdint>

#include "model/numbers.hpp"
#include "stage/kept_ranges.hpp"

namespace recfn::stage {

constexpr uint32_t kSeveral = UINT32_MAX;  // in place of the number of a module's path

// Ranges of one path. Those that lie in it hang below it, in the order in which they came. Times in nanoseconds.
struct Path {
  Path *next, *first_below, *last_below;
  Path* home;  // where those hang that lie in it: of a backward node in the range around it, that; else itself
  uint32_t name, below;
  uint32_t shown, module, modules;  // as of a range; `kSeveral` where they differ
  int64_t count, total_ns, self_ns, shortest_ns, longest_ns, first_ns;
  int64_t cpu_time_ns;  // -1: not known of all of them
  uint64_t first_id;
  int64_t first_row;  // -1: it may be gone
  bool in_compilation;  // it has no span
};

// Of two CPU times.
inline int64_t sum_of_known(int64_t one, int64_t other) {
  return one < 0 || other < 0 || one > INT64_MAX - other ? -1 : one + other;
}

// Belongs to what it was folded into, which gives it back to `Trees`.
struct FoldedTree {
  uint32_t most = kPathsOfASpan;  // paths; what needs more goes to `kOther`
  uint32_t size = 0;
  Path* root = nullptr;  // null where nothing was folded
  int64_t children_ns = 0;  // of a span of a range: how long those took that lay directly in it, in its thread

  // Empties it; the times stay.
  void forget() { size = 0, root = nullptr; }
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
      place = make_below(holder, around, one.name, one.shown);
    } else if (place == nullptr) {
      place = other(holder, one.name, one.shown);
      if (&around != holder.root) total_ns = 0;  // what it lies in has its time
    }
    add(*place, one, self_ns, total_ns);
    return place;
  }

  // The range around a backward node that is shown by the node's span, of which it is a part.
  void fold_around_node(FoldedTree& holder, const Range& one) {
    const int64_t self_ns = (one.flags & kOverlapping) != 0 ? 0 : wrapped_difference(one.duration_ns, holder.children_ns);
    Path& path = *fold(holder, nullptr, one, self_ns);
    path.total_ns = wrapped_difference(path.total_ns, one.duration_ns);
  }

  // What was folded into a range, or waited in it, which is nothing afterwards, was folded into `holder`, and lies at `above`
  // there or (null) directly in the span.
  void merge(FoldedTree& holder, Path* above, FoldedTree& other) {
    if (other.root == nullptr) return;
    const bool fits = holder.size + other.size <= holder.most;
    if (fits) holder.size += other.size;
    Path& place = above_or_root(holder, above);
    Path* list = detach_below(*other.root);
    nodes_.give_back(other.root);
    merge_list(place, list, holder, fits);
    other.forget();
  }

  void give_back(FoldedTree& tree) {
    give_back_all(tree.root);
    tree.forget();
  }

  // To be called when no tree is in use.
  void shrink() {
    if (nodes_.shrink()) many_.release();
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
    path.in_compilation |= (one.flags & kInCompilation) != 0;
    note_first(path, {one.start_ns, one.event_id, one.row});
    note_module(path, one.module, one.modules);
    path.shortest_ns = std::min(path.shortest_ns, one.duration_ns);
    path.longest_ns = std::max(path.longest_ns, one.duration_ns);
    ++path.count, path.total_ns = wrapped_sum(path.total_ns, total_ns), path.self_ns = wrapped_sum(path.self_ns, self_ns);
    path.cpu_time_ns = sum_of_known(path.cpu_time_ns, one.cpu_time_ns);
  }

  struct First {
    int64_t start_ns;
    uint64_t event_id;
    int64_t row;
  };
  static void note_first(Path& path, const First& one) {
    if (one.start_ns > path.first_ns || (one.start_ns == path.first_ns && one.event_id >= path.first_id)) return;
    path.first_ns = one.start_ns, path.first_id = one.event_id, path.first_row = one.row;
  }
  static void note_module(Path& path, uint32_t module, uint32_t modules) {
    path.module = path.count == 0 || path.module == module ? module : kSeveral;
    path.modules = path.count == 0 || path.modules == modules ? modules : kSeveral;
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
    if (above != nullptr) return *above->home;
    if (holder.root == nullptr) holder.root = make(kOther, kOther);
    return *holder.root;
  }

  Path* make_below(FoldedTree& holder, Path& around, uint32_t name, uint32_t shown) {
    ++holder.size;
    Path* place = make(name, shown);
    append(around, *place);
    return place;
  }

  // Where what no path is left for is added up: by name, below a path for all of it.
  Path* other(FoldedTree& holder, uint32_t name, uint32_t shown) {
    Path* all = find(*holder.root, kOther);
    if (all == nullptr) all = make_below(holder, *holder.root, kOther, kOther);
    Path* own = name == kOther ? all : find(*all, name);
    if (own == nullptr && holder.size <= holder.most + kNamesOfOther) own = make_below(holder, *all, name, shown);
    return own == nullptr ? all : own;
  }

  // `fits`: the holder's size counts all of them already, and what is new goes there with all that hangs below it.
  void merge_list(Path& place, Path* list, FoldedTree& holder, bool fits) {
    for (Path *path = list, *next; path != nullptr; path = next) {
      next = path->next;
      Path* mine = find(place, path->name);
      if (mine == nullptr && fits) {
        append(place, *path);
        if (path->home != path) merge_list(place, detach_below(*path), holder, fits);
        continue;
      }
      Path* below = detach_below(*path);
      if (mine == nullptr && holder.size < holder.most) {
        ++holder.size;
        mine = path;
        append(place, *path);
      } else {
        if (mine == nullptr) {
          mine = other(holder, path->name, path->shown);
          if (&place != holder.root) path->total_ns = 0;  // what it lies in has its time
        }
        add(*mine, path);
        if (fits) --holder.size;
      }
      merge_list(*mine->home, below, holder, fits);
    }
  }

  Path* make(uint32_t name, uint32_t shown) {
    Path* path = nodes_.take();
    path->next = path->first_below = path->last_below = nullptr;
    path->home = path, path->name = name, path->shown = shown, path->module = path->modules = 0, path->below = 0;
    path->count = path->total_ns = path->self_ns = path->longest_ns = 0;
    path->shortest_ns = path->first_ns = INT64_MAX, path->first_id = UINT64_MAX, path->first_row = -1;
    path->cpu_time_ns = name == kOther ? -1 : 0;  // what is there may lie in each other
    path->in_compilation = false;
    return path;
  }

  // Also gives the other one back.
  void add(Path& path, Path* other) {
    note_first(path, {other->first_ns, other->first_id, other->first_row});
    if (other->count != 0) note_module(path, other->module, other->modules);
    path.shortest_ns = std::min(path.shortest_ns, other->shortest_ns);
    path.longest_ns = std::max(path.longest_ns, other->longest_ns);
    path.count += other->count;
    path.total_ns = wrapped_sum(path.total_ns, other->total_ns), path.self_ns = wrapped_sum(path.self_ns, other->self_ns);
    path.cpu_time_ns = sum_of_known(path.cpu_time_ns, other->cpu_time_ns);
    path.in_compilation |= other->in_compilation;
    nodes_.give_back(other);
  }

  void append(Path& above, Path& path) {
    path.next = nullptr, path.home = is_node_of(above, path.name) ? &above : &path;
    (above.last_below == nullptr ? above.first_below : above.last_below->next) = &path;
    above.last_below = &path;
    if (++above.below <= kMany) return;
    for (Path* each = above.below == kMany + 1 ? above.first_below : &path; each != nullptr; each = each->next) {
      many_.insert({&above, each});
    }
  }

  // What hangs below it, as a list, hangs below it no more.
  Path* detach_below(Path& above) {
    Path* first = above.first_below;
    if (above.below > kMany) {
      for (const Path* each = first; each != nullptr; each = each->next) many_.erase(edge(above, each->name));
    }
    above.first_below = above.last_below = nullptr, above.below = 0;
    return first;
  }

  // Gives back a path with all that hangs below it.
  void give_back_all(Path* root) {
    while (root != nullptr) {
      Path *path = root, *last = path->last_below, *below = detach_below(*path);
      root = path->next;
      if (below != nullptr) last->next = root, root = below;
      nodes_.give_back(path);
    }
  }

  Pool<Path> nodes_;
  IdTable<Edge> many_;
};

}  // namespace recfn::stage
