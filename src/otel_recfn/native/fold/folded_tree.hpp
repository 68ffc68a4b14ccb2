// What is no span of its own: what was folded into one span, or waits for one.
#pragma once
#include <cstdint>

#include "fold/paths.hpp"
#include "fold/pool.hpp"
#include "fold/range.hpp"

namespace recfn::folding {

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
    Path* place = paths_.find(around, one.name);
    int64_t total_ns = one.duration_ns;
    if (place == nullptr && holder.size < holder.most) {
      place = make_below(holder, around, one.name);
    } else if (place == nullptr) {
      place = other(holder);
      if (&around != holder.root) total_ns = 0;  // what it lies in has its time
    }
    paths_.add(*place, one, self_ns, total_ns);
    if ((one.flags & kLinkable) != 0) link(holder, one.event_id);
    return place;
  }
  // What was folded into a range, or waited in it, which is nothing afterwards, was folded into `holder`, and lies at `above`
  // there or (null) directly in the span.
  void merge(FoldedTree& holder, Path* above, FoldedTree& other);
  void give_back(FoldedTree& tree);
  // None is in use.
  void shrink() { paths_.shrink(), linkables_.shrink(); }

 private:
  Path& above_or_root(FoldedTree& holder, Path* above) {
    if (above != nullptr) return *above;
    if (holder.root == nullptr) holder.root = paths_.make(kOther);
    return *holder.root;
  }
  Path* make_below(FoldedTree& holder, Path& around, uint32_t name);
  Path* other(FoldedTree& holder);
  void merge_list(Path& place, Path* list, FoldedTree& holder, bool fits);
  void link(FoldedTree& holder, uint64_t event_id);
  void link(FoldedTree& holder, Linkable* first, Linkable* last);

  Paths paths_;
  Pool<Linkable> linkables_;
};

}  // namespace recfn::folding
