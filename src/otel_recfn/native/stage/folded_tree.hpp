// What is no span of its own: ranges that were folded into one span, or wait for one, summed up by their path of names below it.
#pragma once
#include <algorithm>
#include <cstdint>

#include "model/numbers.hpp"
#include "stage/kept_ranges.hpp"

namespace recfn::stage {

// Counts of a few neighbouring numbers of digits.
struct Window {
  static constexpr unsigned kSize = 7;
  static constexpr unsigned kBelowFirst = 3;  // so many smaller ones stand before the one that it is made for

  Window* next;
  uint32_t counts[kSize];  // a unit has fewer rows
  uint8_t from;

  static unsigned from_for(unsigned digits) { return std::max(digits, kBelowFirst) - kBelowFirst; }

  void clear(unsigned first) {
    next = nullptr, from = static_cast<uint8_t>(first);
    std::fill(counts, counts + kSize, 0);
  }
  bool has(unsigned digits) const { return digits - from < kSize; }
};

// Durations of a path mostly are alike: the histogram itself is one window, and so is small.
class Histogram {
 public:
  // For durations of about so many digits.
  void clear(unsigned digits) { first_.clear(Window::from_for(digits)); }
  // For durations as another one has.
  void clear(const Histogram& other) { first_.clear(other.first_.from); }

  void add(unsigned digits, Pool<Window>& windows) {
    if (digits < kDigits) add(digits, 1, Window::from_for(digits), windows);  // there is no column for more
  }

  void add(const Histogram& other, Pool<Window>& windows) {
    for (const Window* each = &other.first_; each != nullptr; each = each->next) {
      for (unsigned at = 0; at < Window::kSize; ++at) {
        if (each->counts[at] != 0) add(each->from + at, each->counts[at], each->from, windows);
      }
    }
  }

  void give_back_windows(Pool<Window>& windows) {
    for (Window* next; first_.next != nullptr; first_.next = next) {
      next = first_.next->next;
      windows.give_back(first_.next);
    }
  }

  // From the fewest to the most digits that have a count. Returns the fewest.
  template <typename Visit>
  unsigned each(Visit visit) const {
    unsigned first = kDigits, last = 0;
    for (const Window* each = &first_; each != nullptr; each = each->next) {
      for (unsigned at = 0; at < Window::kSize; ++at) {
        if (each->counts[at] != 0) first = std::min(first, each->from + at), last = std::max(last, each->from + at);
      }
    }
    for (unsigned digits = first; digits <= last; ++digits) visit(count(digits));
    return first == kDigits ? 0 : first;
  }

 private:
  // Where no window has these digits, one that begins with `from` is added.
  void add(unsigned digits, uint32_t count, unsigned from, Pool<Window>& windows) {
    Window* window = &first_;
    while (!window->has(digits)) {
      if (window->next == nullptr) window->next = windows.take(), window->next->clear(from);
      window = window->next;
    }
    window->counts[digits - window->from] += count;
  }

  uint32_t count(unsigned digits) const {
    const Window* window = &first_;
    while (window != nullptr && !window->has(digits)) window = window->next;
    return window == nullptr ? 0 : window->counts[digits - window->from];
  }

  Window first_;
};

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
  void merge(FoldedTree& holder, Path* above, FoldedTree& other) {
    if (other.root != nullptr) {
      const bool fits = holder.size + other.size <= holder.most;
      if (fits) holder.size += other.size;
      Path& place = above_or_root(holder, above);
      Path* list = detach_below(*other.root);
      give_back(other.root);
      merge_list(place, list, holder, fits);
    }
    if (other.first_linkable != nullptr) link(holder, other.first_linkable, other.last_linkable);
    other.forget();
  }

  void give_back(FoldedTree& tree) {
    give_back_all(tree.root);
    for (Linkable *each = tree.first_linkable, *next; each != nullptr; each = next) {
      next = each->next;
      linkables_.give_back(each);
    }
    tree.forget();
  }

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

  Path* make_below(FoldedTree& holder, Path& around, uint32_t name) {
    ++holder.size;
    Path* place = make(name);
    append(around, *place);
    return place;
  }

  Path* other(FoldedTree& holder) {
    Path* found = find(*holder.root, kOther);
    return found != nullptr ? found : make_below(holder, *holder.root, kOther);
  }

  // `fits`: the holder's size counts all of them already, and what is new goes there with all that hangs below it.
  void merge_list(Path& place, Path* list, FoldedTree& holder, bool fits) {
    for (Path *path = list, *next; path != nullptr; path = next) {
      next = path->next;
      Path* mine = find(place, path->name);
      if (mine == nullptr && fits) {
        append(place, *path);
        continue;
      }
      Path* below = detach_below(*path);
      if (mine == nullptr && holder.size < holder.most) {
        ++holder.size;
        mine = path;
        append(place, *path);
      } else {
        if (mine == nullptr) {
          mine = other(holder);
          if (&place != holder.root) path->total_ns = 0;  // what it lies in has its time
        }
        add(*mine, path);
        if (fits) --holder.size;
      }
      merge_list(*mine, below, holder, fits);
    }
  }

  void link(FoldedTree& holder, uint64_t event_id) {
    Linkable* linkable = linkables_.take();
    linkable->next = nullptr, linkable->event_id = event_id;
    link(holder, linkable, linkable);
  }

  void link(FoldedTree& holder, Linkable* first, Linkable* last) {
    (holder.last_linkable == nullptr ? holder.first_linkable : holder.last_linkable->next) = first;
    holder.last_linkable = last;
  }

  Path* make(uint32_t name) {
    Path* path = nodes_.take();
    path->next = path->first_below = path->last_below = nullptr;
    path->name = name, path->below = 0;
    path->count = path->total_ns = path->self_ns = path->longest_ns = 0;
    path->shortest_ns = path->first_ns = INT64_MAX, path->first_id = UINT64_MAX;
    path->histogram.clear(0);
    return path;
  }

  // Also gives the other one back.
  void add(Path& path, Path* other) {
    if (other->first_ns < path.first_ns || (other->first_ns == path.first_ns && other->first_id < path.first_id)) {
      path.first_ns = other->first_ns, path.first_id = other->first_id;
    }
    path.shortest_ns = std::min(path.shortest_ns, other->shortest_ns);
    path.longest_ns = std::max(path.longest_ns, other->longest_ns);
    if (path.count == 0) path.histogram.clear(other->histogram);
    path.count += other->count;
    path.total_ns = wrapped_sum(path.total_ns, other->total_ns), path.self_ns = wrapped_sum(path.self_ns, other->self_ns);
    path.histogram.add(other->histogram, windows_);
    give_back(other);
  }

  void append(Path& above, Path& path) {
    path.next = nullptr;
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

  void give_back(Path* path) {
    path->histogram.give_back_windows(windows_);
    nodes_.give_back(path);
  }

  // With all that hangs below it.
  void give_back_all(Path* root) {
    while (root != nullptr) {
      Path *path = root, *last = path->last_below, *below = detach_below(*path);
      root = path->next;
      if (below != nullptr) last->next = root, root = below;
      give_back(path);
    }
  }

  Pool<Path> nodes_;
  Pool<Window> windows_;
  Pool<Linkable> linkables_;
  IdTable<Edge> many_;
};

}  // namespace recfn::stage
