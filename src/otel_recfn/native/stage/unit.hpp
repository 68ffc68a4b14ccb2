// An open unit selects some of its ranges, and folds each of the others into the nearest selected
// one around it. At its decision it selects all ranges that took a thousandth of its time, if it
// may have so many spans, or else those that have a span of their own in its tree of calls.
//
//     add ──► a node waits for the range around it ──► waits, as they came
//                                                        │ too many wait, or the unit is decided
//                                                        ▼
//                                                     compared ─┬► selected, waits further
//                                                               └► folded (folded_ranges.hpp)
//
// A unit's ranges wait until it ends, or four times its budget have come, and are compared at once.
// A heap that keeps the longest at each moment costs more, and keeps up to 1,000 in vain of a unit
// that is to have 50.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/events.hpp"
#include "model/numbers.hpp"
#include "stage/backward_nodes.hpp"
#include "stage/folded_ranges.hpp"
#include "stage/stage_rows.hpp"
#include "stage/unit_parts.hpp"
#include "stage/unit_state.hpp"

namespace recfn::stage {

class Unit {
 public:
  Unit(Memory& memory, const Limits& limits, uint64_t number, int64_t batch)
      : state(number, batch), memory_(memory), limits_(limits), folded_(memory) {}

  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;

  UnitState state;
  uint32_t in_batch = UINT32_MAX;  // its index among the units of the batch that is planned

  // Reserves memory for so many ranges, which are added next.
  void expect(size_t ranges) {
    if (candidates_.empty()) candidates_.reserve(ranges);
  }

  // Adds the next range that has ended. A backward node waits for the range around it, to be one
  // span with it.
  void add(const Range& one) {
    if (nodes_.empty() && (one.flags & kBackwardNode) == 0) return add_alone(one);
    add_while_nodes_wait(one);
  }

  // Adds the backward nodes that wait, because the ranges around them don't come.
  void add_nodes() {
    nodes_.add_all([this](const Range& node) { add_alone(node); });
  }

  // Notes how long ranges were in spans inside a range that is added next. That is no self time of
  // it.
  void note_spans_inside(uint64_t event_id, int64_t duration_ns) {
    folded_.note_spans_inside(event_id, duration_ns);
  }

  // Adds the numbers of the rows that may still be selected.
  void candidates(std::vector<int64_t>& rows) const {
    for (const Range& one : candidates_) rows.push_back(one.row);
    nodes_.rows(rows);
  }

  // Selects the ranges that become spans, and folds the others. `duration_ns`: of the unit, or of
  // this part of it. `needs_span`: it has a span in any case. `find_forward(row)`: the event id of
  // the forward range of the backward range in that row, or 0.
  template <typename FindForward>
  void decide(int64_t budget, int64_t duration_ns, bool needs_span, FindForward find_forward) {
    const int64_t spans = std::min(budget, limits_.budget);
    choose_spans(spans, duration_ns);
    note_forwards(find_forward);
    retain_selected();
    if (needs_span && selected_.empty()) select_longest(spans > 0);
  }

  // Sums of less time have no span.
  int64_t min_span_ns() const { return min_span_ns_; }

  // The indices of the selected ranges, outermost first.
  std::vector<uint32_t> outermost_first() const {
    std::vector<uint32_t> order(selected_.size());
    for (uint32_t index = 0; index < order.size(); ++index) order[index] = index;
    std::sort(order.begin(), order.end(), [this](uint32_t one, uint32_t other) {
      if (ranks_below(selected_[other].rank, selected_[one].rank)) return true;
      return !ranks_below(selected_[one].rank, selected_[other].rank) && one < other;
    });
    return order;
  }

  const Range& range(uint32_t index) const { return candidates_[index]; }
  const Selected& selected(uint32_t index) const { return selected_[index]; }
  // The name of an operator without a span that only calls a selected one.
  uint32_t caller(uint32_t index) const { return callers_[index]; }
  // What was folded into the span above the unit.
  const FoldedTree& folded() const { return folded_.tree(); }
  const std::vector<FoldedForward>& forwards() const { return forwards_; }

  // Forgets the ranges of this part, but for the self times of parents that haven't come yet.
  void begin_next_part() {
    state.begin_next_part();
    folded_.clear();
    candidates_.clear();
    selected_.clear();
    callers_.clear();
    forwards_.clear();
    waiting_ = 0;
  }

 private:
  void add_alone(const Range& one) {
    if (waiting_ >= limits_.max_waiting) fold_some();
    candidates_.emplace_back() = one;
    ++waiting_;
  }

  // Not a part of `add`, which is called for each range.
  [[gnu::noinline]] void add_while_nodes_wait(const Range& one) {
    nodes_.add(one, [this](const Range& alone) { add_alone(alone); });
  }

  void choose_spans(int64_t spans, int64_t duration_ns) {
    min_span_ns_ = duration_ns / kMinShare;
    const auto is_long = [this](const Range& one) {
      return one.duration_ns >= min_span_ns_ && (one.flags & kInCompilation) == 0;
    };
    if (std::count_if(candidates_.begin(), candidates_.end(), is_long) <= spans) {
      memory_.comparison.compare(candidates_, {spans, limits_.budget, min_span_ns_});
      if (left_out_ns() <= duration_ns / kLeftOut) return fold_candidates(false);
    }
    memory_.comparison.compare(candidates_, {0, limits_.budget, 0});
    fold_candidates(false, spans, duration_ns);
  }

  // Selects the longest range directly in the unit, if it is alone on its path and no sum has a
  // span.
  void select_longest(bool sums_have_spans) {
    Path* const root = folded_.tree().root;
    Path* longest = root == nullptr ? nullptr : root->first_child;
    for (Path* path = longest; path != nullptr; path = path->next) {
      if (is_longer(*path, *longest)) longest = path;
    }
    if (longest == nullptr || (sums_have_spans && longest->total_ns >= min_span_ns_)) return;
    if (longest->count != 1 || longest->first_row < 0 || longest->nodes != 0) return;
    Paths::remove(*root, *longest);
    candidates_.emplace_back() = longest->only_range();
    const int64_t children_ns = wrapped_difference(longest->total_ns, longest->self_ns);
    selected_.push_back({{longest, children_ns}, kNothing, 0, 0, 0});
  }

  void fold_some() {
    memory_.comparison.compare(candidates_, {limits_.budget, limits_.budget, 0});
    fold_candidates(true);
    retain_selected();
  }

  // How long the ranges took that are not selected and lie in selected ones or directly in the
  // unit, without the ranges that are never selected.
  int64_t left_out_ns() const {
    const Comparison& all = memory_.comparison;
    int64_t sum_ns = outer_ns(folded_.tree());
    for (const Selected& one : selected_) sum_ns = wrapped_sum(sum_ns, outer_ns(one.folded));
    for (size_t index = 0; index < candidates_.size(); ++index) {
      const bool is_outer =
          all.parent(index) >= Comparison::kNotHere || all.is_selected(all.parent(index));
      const bool may_be_selected = (candidates_[index].flags & kInCompilation) == 0;
      if (is_outer && may_be_selected && !all.is_selected(index)) {
        sum_ns = wrapped_sum(sum_ns, candidates_[index].duration_ns);
      }
    }
    return sum_ns;
  }
  static int64_t outer_ns(const FoldedTree& tree) {
    int64_t sum_ns = 0;
    for (const Path* path = tree.root == nullptr ? nullptr : tree.root->first_child;
         path != nullptr; path = path->next) {
      if (!path->in_compilation) sum_ns = wrapped_sum(sum_ns, path->total_ns);
    }
    return sum_ns;
  }

  // Folds the ranges that were compared and not selected. `tree`: how many spans the unit's tree of
  // calls may have; 0: it isn't made.
  void fold_candidates(bool parents_may_come, int64_t tree = 0, int64_t duration_ns = 0) {
    memory_.targets.assign(memory_.comparison.size(), {nullptr, nullptr});
    // Owned until the end: what is folded below goes into these trees, or out of them.
    const FoldedRanges::PendingTrees taken = folded_.take_pending(candidates_);
    folded_.note_pending(candidates_);
    if (!parents_may_come) folded_.settle();
    for (size_t index = 0; index < candidates_.size(); ++index) {
      const uint32_t selected = candidates_[index].selected;
      if (selected != 0) memory_.targets[index].tree = &selected_[selected - 1].folded;
    }
    if (tree > 0) {
      const auto folded_into = [this](uint32_t index) { return memory_.targets[index].tree; };
      min_span_ns_ = memory_.paths.choose(candidates_, memory_.comparison, tree, duration_ns,
                                          folded_.tree(), folded_into);
    }
    if (!parents_may_come) drop_callers();
    move_selected();
    folded_.fold(candidates_, parents_may_come);
  }

  // Notes the forward ranges that were folded now, before `retain_selected` forgets them. Those
  // that were folded earlier aren't found.
  template <typename FindForward>
  void note_forwards(FindForward find_forward) {
    for (const uint32_t index : memory_.comparison.selected()) {
      const Range& one = candidates_[index];
      if (one.scope != kBackwardFunctionScope) continue;
      const uint64_t event_id = find_forward(one.row);
      if (event_id == 0) continue;
      const uint32_t forward = memory_.comparison.find(candidates_, event_id);
      if (forward == Comparison::kNone) continue;
      const Path* const path = memory_.targets[forward].path;
      if (path != nullptr) forwards_.push_back({one.row, path});
    }
  }

  // Deselects the operators that do nothing but call a selected one. The span of that has their
  // names.
  void drop_callers() {
    Comparison& all = memory_.comparison;
    bool any = false;
    for (const uint32_t index : all.selected()) {
      if (!all.is_only_called(candidates_, index)) continue;
      any = true;
      all.drop(all.parent(index));
      candidates_[all.parent(index)].flags |= kOnlyCalls;
    }
    if (any) all.list_selected();
  }

  // Moves what was folded into the selected ranges with them.
  void move_selected() {
    const Comparison& all = memory_.comparison;
    memory_.selected.clear();
    memory_.selected.resize(all.selected().size());
    callers_.clear();
    size_t next = 0;
    for (const uint32_t index : all.selected()) {
      Memory::Target& target = memory_.targets[index];
      const auto first_caller = static_cast<uint32_t>(callers_.size());
      const uint32_t parent = note_callers(index);
      Selected& selected = memory_.selected[next++];
      selected = {target.tree == nullptr ? FoldedTree{} : *target.tree,
                  all.rank(candidates_, index),
                  parent < Comparison::kNotHere ? span_event_id(candidates_[parent]) : 0,
                  first_caller, static_cast<uint32_t>(callers_.size())};
      target.tree = &selected.folded;
    }
  }

  // Notes the operators between a selected range and the selected one around it, and returns the
  // index of that.
  uint32_t note_callers(uint32_t index) {
    const Comparison& all = memory_.comparison;
    uint32_t parent = all.parent(index);
    bool is_only_called = all.is_only_called(candidates_, index);
    while (parent < Comparison::kNotHere && !all.is_selected(parent)) {
      if (is_only_called) callers_.push_back(candidates_[parent].display_name);
      is_only_called = is_only_called && all.is_only_called(candidates_, parent);
      parent = all.parent(parent);
    }
    return parent;
  }

  void retain_selected() {
    uint32_t next = 0;
    for (const uint32_t index : memory_.comparison.selected()) {
      candidates_[next] = candidates_[index];
      ++next;
      candidates_[next - 1].selected = next;
    }
    candidates_.resize(next);
    waiting_ = 0;
    selected_.swap(memory_.selected);
  }

  Memory& memory_;
  const Limits& limits_;
  int64_t min_span_ns_ = 0;
  int64_t waiting_ = 0;  // how many were not compared yet
  FoldedRanges folded_;
  // The ranges that were selected when ranges were compared last, and then those that wait, as they
  // came.
  Ranges candidates_;
  std::vector<Selected> selected_;  // of the former
  BackwardNodes nodes_;
  std::vector<uint32_t> callers_;  // their names
  std::vector<FoldedForward> forwards_;
};

}  // namespace recfn::stage
