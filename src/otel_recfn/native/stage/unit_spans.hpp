// The spans of a unit that is decided: one for each selected range, and summaries of some of the
// paths that the others were folded into (`unit_tree.hpp`).
//
// The rest of a unit's budget goes to summaries of the paths that took the most time, if they took
// long enough. A unit without a selected range has one summary in any case, unless the span above
// it is ours. A summary is as long as all its ranges; `summary_times.hpp` decides when it begins.
//
//     set tree ─► add selected ─► choose summaries ─► their times ─► times worked ─► sums ─► links
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/numbers.hpp"
#include "stage/decided.hpp"
#include "stage/links.hpp"
#include "stage/summary_times.hpp"
#include "stage/unit.hpp"
#include "stage/unit_sums.hpp"
#include "stage/unit_to_decide.hpp"
#include "stage/unit_tree.hpp"
#include "stage/worked_times.hpp"

namespace recfn::stage {

// Adds the spans of one unit after the other to `decided`. Span ids are made with `key`.
class UnitSpans {
 public:
  UnitSpans(uint64_t key, LinkedSpans& linked, Decided& decided)
      : key_(key), linked_(linked), decided_(decided), sums_(decided) {}

  // Adds the spans of a unit, after `Unit::decide`. `unit_index`: its index among the units that
  // are decided together.
  void add(const Unit& unit, const UnitToDecide& to_decide, uint32_t unit_index) {
    to_decide_ = &to_decide;
    unit_index_ = unit_index;
    tree_.set(unit);
    first_span_ = to_decide.takes_sums ? SumTargets::kSpanAbove : SumTargets::kNoSpan;
    first_ns_ = INT64_MAX;
    first_selected_ = decided_.selected.size();
    first_summary_ = decided_.summaries.size();
    selected_times_.clear();
    times_.clear();
    for (size_t i = 0; i < tree_.selected_count(); ++i) add_selected(i);
    for (const size_t node : chosen_summaries()) summarize(tree_.nodes()[node]);
    set_times();
    worked_times_.find(tree_, to_decide.step);
    sums_.add(tree_, worked_times_,
              {unit_index, static_cast<int64_t>(first_selected_),
               kFirstSummary + static_cast<int64_t>(first_summary_), first_span_,
               to_decide.takes_sums, to_decide.is_named});
    if (!unit.forwards().empty()) link_to_folded();
    for (size_t i = 0; i < tree_.selected_count(); ++i) linked_.sent().add(tree_.range(i));
  }

 private:
  void add_selected(size_t index) {
    const Range& one = tree_.range(index);
    const Selected& selected = tree_.selected(index);
    const auto span = static_cast<int64_t>(decided_.selected.size());
    uint64_t parent = selected.parent;
    if (parent == 0) {
      note_span(span, one.duration_ns);
      // The range around it may have been sent with an earlier part of the unit, or with another
      // unit. It is outermost all the same: nothing else of this part may have a span.
      if (one.parent != 0) parent = linked_.sent().sent_span(one.parent);
    }
    for (uint32_t caller = selected.last_caller; caller-- > selected.first_caller;) {
      decided_.callers.push_back({span, tree_.unit().caller(caller)});
    }
    const int64_t end_ns = wrapped_sum(one.start_ns, one.duration_ns);
    decided_.selected.row.push_back(one.row);
    decided_.selected.parent.push_back(parent);
    decided_.selected.event_id.push_back(one.event_id);
    decided_.selected.span_event_id.push_back(span_event_id(one));
    decided_.selected.enclosing_id.push_back(one.parent);
    decided_.selected.start_ns.push_back(one.start_ns);
    decided_.selected.end_ns.push_back(end_ns);
    decided_.selected.parent_span.push_back(static_cast<int64_t>(unit_index_));
    selected_times_.push_back({span_event_id(one), parent, one.thread(), {one.start_ns, end_ns}});
  }

  // Notes a span that lies in no other span of the unit: the first of the longest ones is what a
  // reader sees first. If the root above the unit takes its sums, that is the first one, and stays
  // so.
  void note_span(int64_t span, int64_t duration_ns) {
    if (first_span_ != SumTargets::kNoSpan && duration_ns <= first_ns_) return;
    first_span_ = span;
    first_ns_ = duration_ns;
  }

  // The nodes that get a summary: those that took long enough, as far as the budget goes. Each
  // comes after that of the path that it lies in.
  std::vector<size_t> chosen_summaries() {
    const auto selected_count = static_cast<int64_t>(tree_.selected_count());
    const auto budget =
        static_cast<size_t>(std::max<int64_t>(0, to_decide_->budget - selected_count));
    std::vector<size_t> chosen;
    if (budget > 0) note_callers();
    for (size_t i = 0; i < tree_.nodes().size() && budget > 0; ++i) {
      const PathNode& node = tree_.nodes()[i];
      if (may_have_span(node) && !node.is_caller) chosen.push_back(i);
    }
    if (chosen.size() > budget) retain_longest(chosen, budget);
    const bool has_span = !chosen.empty() || selected_count != 0 || to_decide_->takes_sums;
    if (!has_span && !tree_.nodes().empty()) chosen.push_back(longest_in_unit());
    return chosen;
  }

  void retain_longest(std::vector<size_t>& chosen, size_t count) const {
    const auto last = chosen.begin() + static_cast<std::ptrdiff_t>(count);
    std::nth_element(chosen.begin(), last, chosen.end(), [this](size_t one, size_t other) {
      const int64_t first_ns = tree_.nodes()[one].path->total_ns;
      const int64_t second_ns = tree_.nodes()[other].path->total_ns;
      return first_ns != second_ns ? first_ns > second_ns : one < other;
    });
    chosen.resize(count);
    std::sort(chosen.begin(), chosen.end());
  }

  bool may_have_span(const PathNode& node) const {
    const Path& path = *node.path;
    const bool has_span = !path.in_compilation && !path.is_caller;
    return has_span && path.total_ns >= tree_.unit().min_span_ns();
  }

  void note_callers() {
    for (const PathNode& node : tree_.nodes()) {
      if (may_have_span(node) && is_only_called(node)) tree_.node(node.parent).is_caller = true;
    }
  }

  // Whether the path that it lies in does nothing but call it.
  bool is_only_called(const PathNode& node) const {
    return node.parent != kNoIndex && only_calls(*tree_.node(node.parent).path, *node.path);
  }

  size_t longest_in_unit() const {
    const std::vector<PathNode>& nodes = tree_.nodes();
    size_t longest = 0;
    for (size_t i = 1; i < nodes.size(); ++i) {
      const bool has_parent = nodes[i].parent != kNoIndex;
      if (!has_parent && is_longer(*nodes[i].path, *nodes[longest].path)) longest = i;
    }
    return longest;
  }

  // Adds a summary without its times, which `set_times` adds.
  void summarize(PathNode& node) {
    const Path& path = *node.path;
    const int64_t parent = parent_summary(node);
    const int64_t span = kFirstSummary + static_cast<int64_t>(decided_.summaries.size());
    if (parent == kNoIndex && node.selected == kNoIndex) note_span(span, path.total_ns);
    decided_.summaries.push_back({span_id_of(path.first_id, key_), parent_id(node, parent),
                                  path.first_id, path.count, path.total_ns, path.shortest_ns,
                                  path.longest_ns, 0, 0, path.cpu_time_ns, unit_index_,
                                  path.display_name, node_module(node),
                                  tree_.enclosing_module(node), path.thread, path.scope});
    add_callers(node, span);
    node.summary = static_cast<int64_t>(times_.size());
    const auto selected_count = static_cast<int64_t>(tree_.selected_count());
    const int64_t enclosing = parent == kNoIndex ? node.selected : selected_count + parent;
    times_.push_back(
        {enclosing, path.thread, path.first_id, path.first_ns, path.last_ns, path.total_ns, {}});
  }

  // The id of a summary's parent span: a summary, a selected range, or the span above the unit.
  uint64_t parent_id(const PathNode& node, int64_t parent) const {
    if (parent != kNoIndex) return summary_at(parent).span_id;
    if (node.selected == kNoIndex) return to_decide_->parent_span.span_id;
    return span_id_of(tree_.selected_event_id(node.selected), key_);
  }

  const SummaryRow& summary_at(int64_t number) const {
    return decided_.summaries[first_summary_ + static_cast<size_t>(number)];
  }

  // The innermost summary that the path lies in, or none.
  int64_t parent_summary(const PathNode& node) const {
    int64_t parent = node.parent;
    while (parent != kNoIndex && tree_.node(parent).summary == kNoIndex) {
      parent = tree_.node(parent).parent;
    }
    return parent == kNoIndex ? kNoIndex : tree_.node(parent).summary;
  }

  void add_callers(const PathNode& node, int64_t span) {
    const auto first = static_cast<std::ptrdiff_t>(decided_.callers.size());
    const PathNode* each = &node;
    while (is_only_called(*each) && tree_.node(each->parent).is_caller) {
      each = &tree_.node(each->parent);
      decided_.callers.push_back({span, each->path->display_name});
    }
    std::reverse(decided_.callers.begin() + first, decided_.callers.end());
  }

  // Where in its model the class of a path is called. 0 if another class is called in the same
  // place but for numbers, as in a sequence of layers, because that says nothing of this class.
  uint32_t node_module(const PathNode& node) const {
    const Path& path = *node.path;
    if (path.module != kSeveral) return path.module;
    const auto is_like = [&](uint32_t name, uint32_t modules) {
      return name != path.name && modules == path.modules;
    };
    const Path* each = tree_.enclosing_path(node).first_child;
    for (; each != nullptr; each = each->next) {
      if (is_like(each->name, each->modules)) return 0;
    }
    const uint64_t around = tree_.selected_event_id(node.selected);
    for (size_t i = 0; node.parent == kNoIndex && i < tree_.selected_count(); ++i) {
      const Range& one = tree_.range(i);
      const uint64_t parent = decided_.selected.parent[first_selected_ + i];
      if (parent == around && is_like(one.name, one.modules)) return 0;
    }
    return path.modules == kSeveral ? 0 : path.modules;
  }

  void set_times() {
    layout_.lay_out(times_, selected_times_, to_decide_->sampled,
                    {to_decide_->start_ns, to_decide_->end_ns});
    for (size_t i = 0; i < times_.size(); ++i) {
      SummaryRow& row = decided_.summaries[first_summary_ + i];
      row.start_ns = times_[i].times.start_ns;
      row.end_ns = times_[i].times.end_ns;
    }
  }

  // Links to ranges without a span lead to the nearest span that these were folded into.
  void link_to_folded() {
    const std::vector<PathNode>& nodes = tree_.nodes();
    node_by_path_.clear();
    for (size_t i = 0; i < nodes.size(); ++i) {
      const uint32_t path = nodes[i].path->index;
      if (path >= node_by_path_.size()) node_by_path_.resize(path + 1, 0);
      node_by_path_[path] = i;
    }
    for (const FoldedForward& forward : tree_.unit().forwards()) {
      const uint32_t path = forward.path->index;
      if (path >= node_by_path_.size()) continue;
      const PathNode& node = nodes[node_by_path_[path]];
      // A unit's longest range may have been taken off its path since, as a span of its own.
      if (node.path != forward.path) continue;
      linked_.find(forward.backward_row)->folded_into = event_id_around(node);
    }
  }

  // The event id that the id of the span around a path is made of; 0: it is the span above the
  // unit.
  uint64_t event_id_around(const PathNode& node) const {
    const int64_t summary = node.summary != kNoIndex ? node.summary : parent_summary(node);
    if (summary != kNoIndex) return summary_at(summary).first_id;
    return tree_.selected_event_id(node.selected);
  }

  const uint64_t key_;
  LinkedSpans& linked_;
  Decided& decided_;

  // The unit whose spans are added, and what was found of it.
  UnitTree tree_;
  const UnitToDecide* to_decide_ = nullptr;
  uint32_t unit_index_ = 0;
  size_t first_selected_ = 0, first_summary_ = 0;  // of its spans, in `decided_`
  int64_t first_span_ = SumTargets::kNoSpan;       // the one that is seen first
  int64_t first_ns_ = 0;                           // how long it took
  std::vector<SelectedTimes> selected_times_;
  std::vector<SummaryTimes> times_;
  SummaryLayout layout_;
  WorkedTimes worked_times_;
  UnitSums sums_;
  std::vector<size_t> node_by_path_;  // by the number of the path
};

}  // namespace recfn::stage
