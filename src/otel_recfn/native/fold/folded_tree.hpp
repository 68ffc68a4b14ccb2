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
};

// What the trees of all units are made of.
class Trees {
 public:
  // So many ranges can be folded, or trees merged, which have so many paths together, without memory running out.
  void reserve(size_t folds, size_t paths) {
    paths_.reserve(folds * kNodesOfAFold, folds + paths);
    linkables_.reserve(folds);
  }

  // A range is added up in `holder`, with what was folded into it, which is nothing afterwards.
  void fold(const Range& one, int64_t self_ns, FoldedTree& into_it, FoldedTree& holder);
  // What waited in `other`, which is nothing afterwards, was folded into `holder`.
  void merge(FoldedTree& holder, FoldedTree& other);
  void give_back(FoldedTree& tree);
  // None is in use.
  void shrink() { paths_.shrink(), linkables_.shrink(); }

 private:
  static constexpr size_t kNodesOfAFold = 3;  // the holder's root, the range's own path, the one for others

  Path* place_for(const Range& one, FoldedTree& into_it, FoldedTree& holder);
  Path* other(FoldedTree& holder);
  void merge_below(Path& place, FoldedTree& other, FoldedTree& holder);
  void merge_list(Path& place, Path* list, FoldedTree& holder, bool fits);
  void link(FoldedTree& holder, Linkable* first, Linkable* last);

  Paths paths_;
  Pool<Linkable> linkables_;
};

}  // namespace recfn::folding
