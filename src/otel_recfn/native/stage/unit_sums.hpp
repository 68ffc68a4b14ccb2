// The sums of what was folded, as attributes of a unit's spans: on each selected range and each
// summary of what was folded in it, and of the whole unit on the span that a reader sees first.
// That is the root of ours above it, or else the longest span that lies in no other one of the
// unit. So each range that is folded is counted, also where the only span of a part is a late child
// of a range that an earlier part sent.
//
//     Net                selected        folded 6, unit.folded 7
//     ├─ layer (folded)  summary, 3 x    folded 3
//     │  └─ aten::mm     path, 3 x
//     └─ aten::add       selected        folded 1
//        └─ aten::empty  path, 1 x
#pragma once
#include <cstddef>
#include <cstdint>

#include "model/numbers.hpp"
#include "stage/decided.hpp"
#include "stage/name_times.hpp"
#include "stage/unit_tree.hpp"
#include "stage/worked_times.hpp"

namespace recfn::stage {

// Which spans get a unit's sums. Spans are numbered as in `Decided`.
struct SumTargets {
  static constexpr int64_t kSpanAbove = -1, kNoSpan = -2;

  uint32_t unit_index;  // among the units that are decided together
  int64_t first_selected, first_summary;
  int64_t whole_unit;  // the span that has the sums of the whole unit, or `kNoSpan`
  bool takes_sums;     // the span above the unit takes what was folded directly below it
  bool is_named;       // the sums of the unit have names even if nothing is folded
};

class UnitSums {
 public:
  explicit UnitSums(Decided& decided) : decided_(decided) {}

  void add(const UnitTree& tree, const WorkedTimes& worked, const SumTargets& targets) {
    tree_ = &tree;
    worked_ = &worked;
    targets_ = &targets;
    const Sums unit = add_folded();
    for (size_t i = 0; i < tree.nodes().size(); ++i) {
      const PathNode& node = tree.nodes()[i];
      const bool has_more = node.descendants != 0 || node.path->nodes != 0;
      if (node.summary != kNoIndex && has_more) add_within(i);
    }
    names_.clear();
    if (unit.ranges != 0 || targets.is_named) {
      worked.each([this](const NameTime& one) { names_.add(one); });
    }
    if (targets.whole_unit != SumTargets::kNoSpan) push(targets.whole_unit, true, unit);
  }

 private:
  struct Sums {
    int64_t ranges = 0, duration_ns = 0;
  };

  // Adds the sums of what was folded into the span above, if that is ours, and into each selected
  // range. Returns those of all together.
  Sums add_folded() {
    Sums all;
    size_t i = 0;
    const auto selected_count = static_cast<int64_t>(tree_->selected_count());
    for (int64_t selected = kNoIndex; selected < selected_count; ++selected) {
      Sums sums;
      names_.clear();
      const bool is_above = selected == kNoIndex;
      const bool has_span = !is_above || targets_->takes_sums;
      if (!is_above && has_node(tree_->range(static_cast<size_t>(selected)))) ++sums.ranges;
      for (; i < tree_->nodes().size() && tree_->nodes()[i].selected == selected; ++i) {
        add(sums, i, kNoIndex);
        if (has_span) names_.add(worked_->node(i));
      }
      all.ranges += sums.ranges;
      all.duration_ns = wrapped_sum(all.duration_ns, sums.duration_ns);
      if (sums.ranges == 0 || !has_span) continue;
      push(is_above ? SumTargets::kSpanAbove : targets_->first_selected + selected, false, sums);
    }
    return all;
  }

  // Adds the sums of what lies in a summary. The backward nodes count that are one span with its
  // ranges.
  void add_within(size_t index) {
    const PathNode& node = tree_->nodes()[index];
    Sums sums;
    sums.ranges = node.path->nodes;
    names_.clear();
    for (size_t i = index + 1; i <= index + node.descendants; ++i) {
      add(sums, i, static_cast<int64_t>(index));
      names_.add(worked_->node(i));
    }
    push(targets_->first_summary + node.summary, false, sums);
  }

  // Adds a path to the sums of what lies in the path `enclosing`, or in none. A backward node that
  // is one span with the range around it counts as a part of that.
  void add(Sums& sums, size_t index, int64_t enclosing) const {
    const PathNode& node = tree_->nodes()[index];
    const Path& path = *node.path;
    sums.ranges += path.count + path.nodes;
    if (node.parent == enclosing) sums.duration_ns = wrapped_sum(sums.duration_ns, path.total_ns);
  }

  void push(int64_t span, bool is_whole_unit, const Sums& sums) {
    names_.append_top(decided_.top);
    decided_.sums.push_back({targets_->unit_index, span, is_whole_unit ? 1 : 0, sums.ranges,
                             sums.duration_ns, static_cast<int64_t>(decided_.top.size())});
  }

  Decided& decided_;
  const UnitTree* tree_ = nullptr;
  const WorkedTimes* worked_ = nullptr;
  const SumTargets* targets_ = nullptr;
  NameTimes names_;
};

}  // namespace recfn::stage
