// The ranges of a unit that are no spans of their own, in trees of call paths.
//
//     a range is folded into the tree of
//       the kept range around it ─────────────── Selected::folded
//       none: it lies directly in the unit ───── tree()
//       one that hasn't come yet (it is open) ── a pending tree, by that one's event id
//                                                 │ it comes
//                                                 ▼
//                          it is kept: the tree is its own; it is folded: the tree goes with it
//
// Each tree also has how long those took that lie directly in its range, which is no time of the
// range's own.
#pragma once
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <vector>

#include "model/numbers.hpp"
#include "stage/folded_tree.hpp"
#include "stage/range.hpp"
#include "stage/selected_ranges.hpp"
#include "stage/unit_parts.hpp"

namespace recfn::stage {

class FoldedRanges {
  // What came of ranges that haven't come themselves, by their event ids.
  using PendingParents = std::map<uint64_t, FoldedTree>;

 public:
  // Pending trees whose ranges have come. They live as long as this does: targets point into them.
  using PendingTrees = std::vector<PendingParents::node_type>;

  explicit FoldedRanges(Memory& memory) : memory_(memory) {}

  // What was folded into the span above the unit.
  FoldedTree& tree() { return folded_; }
  const FoldedTree& tree() const { return folded_; }

  // So long were ranges in spans inside a range that is added next, which is no time of its own.
  void note_spans_inside(uint64_t event_id, int64_t duration_ns) {
    add_children(event_id, duration_ns);
  }

  // What was awaited by ranges that have come now becomes their target.
  PendingTrees take_pending(const Ranges& candidates) {
    PendingTrees taken;
    for (size_t index = 0; index < candidates.size() && !pending_parents_.empty(); ++index) {
      const Range& one = candidates[index];
      if (one.selected != 0) continue;
      take_pending(one.event_id, index, taken);
      if (has_node(one)) take_pending(node_id(one), index, taken);
    }
    return taken;
  }

  // Of ranges whose parents haven't come, those know how long they took.
  void note_pending(const Ranges& candidates) {
    if (memory_.comparison.not_here() == 0) return;
    for (size_t index = 0; index < candidates.size(); ++index) {
      const Range& one = candidates[index];
      if (one.selected != 0 || memory_.comparison.parent(index) != Comparison::kNotHere) continue;
      if (takes_time_of(one.parent, one)) add_children(one.parent, one.duration_ns);
    }
  }

  // What belongs to ranges that haven't come lies directly in the unit.
  void settle() {
    for (auto& [event_id, tree] : pending_parents_) paths_.merge(folded_, nullptr, tree);
  }

  // Folds those that aren't kept. What is around a range comes after it, so the last one is the
  // first here. Where a range is kept, what lies in it lies on no path.
  void fold(const Ranges& candidates, bool parents_may_come) {
    const Comparison& all = memory_.comparison;
    for (size_t index = candidates.size(); index-- > 0;) {
      const Range& one = candidates[index];
      const uint32_t parent = all.parent(index);
      Memory::Target enclosing{nullptr, nullptr};
      if (parent < Comparison::kNotHere) {
        enclosing = memory_.targets[parent];
        if (one.selected == 0) take_time(enclosing, candidates[parent], one);
      }
      if (all.is_selected(index)) continue;
      if (enclosing.tree == nullptr) enclosing.tree = &target_tree(parent, one, parents_may_come);
      memory_.targets[index] =
          fold_one(one, enclosing, memory_.targets[index].tree, parents_may_come);
    }
  }

  // Forgets all but how much of the awaited ranges' time is not their own.
  void clear() {
    paths_.clear();
    folded_.root = nullptr;
    for (auto& [event_id, tree] : pending_parents_) tree.root = nullptr;
    size_t stay = 0;
    for (auto one = pending_parents_.begin(); one != pending_parents_.end();) {
      const bool stays = one->second.children_ns != 0 && stay++ < kMaxPendingParents;
      one = stays ? std::next(one) : pending_parents_.erase(one);
    }
  }

 private:
  void add_children(uint64_t event_id, int64_t duration_ns) {
    FoldedTree& enclosing = pending_parents_[event_id];
    enclosing.children_ns = wrapped_sum(enclosing.children_ns, duration_ns);
  }

  void take_pending(uint64_t event_id, size_t index, PendingTrees& taken) {
    const auto found = pending_parents_.find(event_id);
    if (found == pending_parents_.end()) return;
    FoldedTree*& into = memory_.targets[index].tree;
    FoldedTree& came = found->second;
    if (into == nullptr) {
      into = &came;
      taken.push_back(pending_parents_.extract(found));
      return;
    }
    into->children_ns = wrapped_sum(into->children_ns, came.children_ns);
    paths_.merge(*into, nullptr, came);
    pending_parents_.erase(found);
  }

  // What lies in a range, in its thread, is no time of its own. An asynchronous one has none.
  static void take_time(const Memory::Target& target, const Range& enclosing, const Range& one) {
    if (!takes_time_of(enclosing.event_id, one)) return;
    if (target.path == nullptr) {
      target.tree->children_ns = wrapped_sum(target.tree->children_ns, one.duration_ns);
    } else if (!overlaps(enclosing)) {
      target.path->self_ns = wrapped_difference(target.path->self_ns, one.duration_ns);
    }
  }

  // Whether a range that lies in another one, of that id, is in its time and thread.
  static bool takes_time_of(uint64_t enclosing, const Range& one) {
    return enclosing >> kOrdinalBits == one.event_id >> kOrdinalBits && !overlaps(one);
  }

  // Where more may come, its row may be forgotten before it is decided.
  Memory::Target fold_one(Range one, const Memory::Target& enclosing, FoldedTree* into_it,
                          bool more_may_come) {
    if (more_may_come) one.row = -1;
    // Of those that came earlier.
    const int64_t children_ns = into_it == nullptr ? 0 : into_it->children_ns;
    const int64_t self_ns = overlaps(one) ? 0 : wrapped_difference(one.duration_ns, children_ns);
    Path* path = paths_.fold(*enclosing.tree, enclosing.path, one, self_ns);
    if (into_it != nullptr) paths_.merge(*enclosing.tree, path, *into_it);
    return {enclosing.tree, path};
  }

  // What a range that lies in none of the others is folded into.
  FoldedTree& target_tree(uint32_t parent, const Range& one, bool parents_may_come) {
    const bool is_pending = parent == Comparison::kNotHere && parents_may_come;
    return is_pending ? pending_parents_[one.parent] : folded_;
  }

  Memory& memory_;
  Paths paths_;
  FoldedTree folded_;
  PendingParents pending_parents_;
};

}  // namespace recfn::stage
