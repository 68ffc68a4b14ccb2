// The spans of a unit that is decided: one for each selected range, summaries of some of the paths
// that the others were folded into, and on them the sums of what was folded.
//
// The rest of a unit's budget goes to summaries of the paths that took the most time, if they took
// long enough. A unit without a selected range has one summary in any case, unless the span above
// it is ours.
//
// A summary is as long as all its ranges. `summary_times.hpp` decides when it begins.
//
// Each selected range and each summary has the sums of what was folded in it. Those of the whole
// unit stand on the span that a reader sees first: on the root of ours above it, or else on the
// longest span that lies in no other one of the unit. So each range that is folded is counted, also
// where the only span of a part is a late child of a range that an earlier part sent.
//
//     Net                selected        folded 6, unit.folded 7
//     ├─ layer (folded)  summary, 3 x    folded 3
//     │  └─ aten::mm     path, 3 x
//     └─ aten::add       selected        folded 1
//        └─ aten::empty  path, 1 x
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "columns/fields.hpp"
#include "model/numbers.hpp"
#include "stage/decided.hpp"
#include "stage/links.hpp"
#include "stage/name_times.hpp"
#include "stage/summary_times.hpp"
#include "stage/unit.hpp"
#include "stage/unit_state.hpp"
#include "stage/worked_times.hpp"

namespace recfn::stage {

// How many spans a unit may have.
struct GrantRow {
  uint64_t unit;
  int64_t spans;
  int64_t is_named;  // its sums have names even if nothing is folded
};

constexpr auto fields_of(const GrantRow*) {
  return std::array{RECFN_FIELD(GrantRow, unit), RECFN_FIELD(GrantRow, spans),
                    RECFN_FIELD(GrantRow, is_named)};
}

// A span of what samples found in a unit, beside which its summaries lie.
struct SampledRow {
  uint64_t unit;
  uint64_t parent;  // the event id of the range around it; 0: it lies directly in the unit
  uint64_t thread;  // the recorder's number
  int64_t start_ns, end_ns;
};

constexpr auto fields_of(const SampledRow*) {
  return std::array{RECFN_FIELD(SampledRow, unit), RECFN_FIELD(SampledRow, parent),
                    RECFN_FIELD(SampledRow, thread), RECFN_FIELD(SampledRow, start_ns),
                    RECFN_FIELD(SampledRow, end_ns)};
}

// A unit that is decided, or a part of it.
struct UnitToDecide {
  ParentSpan parent_span;
  int64_t budget;            // how many spans it may have
  int64_t start_ns, end_ns;  // its extent
  WorkedRange step;          // the step that it lies in, if any
  bool takes_sums;           // the span above it takes what was folded directly below it
  bool is_named;             // its sums have names even if nothing is folded
  std::vector<SelectedTimes> sampled;
};

// Adds the spans of one unit after the other to `decided`. Span ids are made with `key`.
class UnitSpans {
 public:
  UnitSpans(uint64_t key, LinkedSpans& linked, Decided& decided)
      : key_(key), linked_(linked), decided_(decided) {}

  // Adds the spans of a unit, after `Unit::decide`. `unit_index`: its index among the units that
  // are decided together.
  void add(const Unit& unit, const UnitToDecide& to_decide, uint32_t unit_index) {
    unit_ = &unit;
    to_decide_ = &to_decide;
    unit_index_ = unit_index;
    selected_ = unit.outermost_first();
    first_span_ = to_decide.takes_sums ? kNone : kNoSpan;
    first_ns_ = INT64_MAX;
    nodes_.clear();
    selected_times_.clear();
    times_.clear();
    first_summary_ = decided_.summaries.size();
    add_selected();
    add_tree(unit.folded(), kNone);
    for (size_t selected_index = 0; selected_index < selected_.size(); ++selected_index) {
      add_tree(unit.selected(selected_[selected_index]).folded,
               static_cast<int64_t>(selected_index));
    }
    count_within();
    index_selected();
    choose_summaries();
    set_times();
    find_worked();
    sum_up();
    if (!unit.forwards().empty()) link_to_folded();
    for (const uint32_t each : selected_) linked_.sent().add(unit.range(each));
  }

 private:
  static constexpr int64_t kNone = -1, kNoSpan = -2;

  // A path. Nodes are in depth-first order; of several paths in one, that with the most time is
  // first.
  struct Node {
    const Path* path;
    int64_t selected_index;  // the selected range of the unit that it was folded into, or none
    int64_t parent;          // the index of the node of the path that it lies in, or none
    size_t descendants;      // how many lie in it, which follow it
    int64_t summary;         // its own, or none
    bool is_caller;          // it only calls a path in it, which has a summary in its stead
  };

  void add_selected() {
    first_selected_ = static_cast<int64_t>(decided_.selected.size());
    for (const uint32_t each : selected_) {
      const Range& one = unit_->range(each);
      const Selected& selected = unit_->selected(each);
      const auto span = static_cast<int64_t>(decided_.selected.size());
      uint64_t parent = selected.parent;
      if (parent == 0) {
        note_span(span, one.duration_ns);
        // The range around it may have been sent with an earlier part of the unit, or with another
        // unit. It is outermost all the same: nothing else of this part may have a span.
        if (one.parent != 0) parent = linked_.sent().sent_span(one.parent);
      }
      for (uint32_t caller = selected.last_caller; caller-- > selected.first_caller;) {
        decided_.callers.push_back({span, unit_->caller(caller)});
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
  }

  // A span that lies in no other span of the unit: the first of the longest ones is what a reader
  // sees first. If the root above the unit takes its sums, that is the first one, and stays so.
  void note_span(int64_t span, int64_t duration_ns) {
    if (first_span_ == kNoSpan || duration_ns > first_ns_) {
      first_span_ = span;
      first_ns_ = duration_ns;
    }
  }

  void add_tree(const FoldedTree& tree, int64_t selected_index) {
    if (tree.root != nullptr) add_children(*tree.root, selected_index, kNone);
    while (!waiting_.empty()) {
      const Node next = waiting_.back();
      waiting_.pop_back();
      const auto index = static_cast<int64_t>(nodes_.size());
      nodes_.push_back(next);
      if (next.path->first_child != nullptr) add_children(*next.path, selected_index, index);
    }
  }

  void add_children(const Path& path, int64_t selected_index, int64_t parent) {
    const auto first = static_cast<std::ptrdiff_t>(waiting_.size());
    for (const Path* each = path.first_child; each != nullptr; each = each->next) {
      waiting_.push_back({each, selected_index, parent, 0, kNone, false});
    }
    std::sort(waiting_.begin() + first, waiting_.end(),
              [](const Node& one, const Node& other) { return is_longer(*other.path, *one.path); });
  }

  Node& node_at(int64_t index) { return nodes_[static_cast<size_t>(index)]; }
  const Node& node_at(int64_t index) const { return nodes_[static_cast<size_t>(index)]; }

  void count_within() {
    for (size_t i = nodes_.size(); i-- > 0;) {
      if (nodes_[i].parent != kNone)
        node_at(nodes_[i].parent).descendants += nodes_[i].descendants + 1;
    }
  }

  // Makes summaries of the paths that took long enough, as far as the budget goes. Each comes after
  // that of the path that it lies in.
  void choose_summaries() {
    const auto budget = static_cast<size_t>(
        std::max<int64_t>(0, to_decide_->budget - static_cast<int64_t>(selected_.size())));
    std::vector<size_t> chosen;
    if (budget > 0) note_callers();
    for (size_t i = 0; i < nodes_.size() && budget > 0; ++i) {
      if (may_have_span(nodes_[i]) && !nodes_[i].is_caller) chosen.push_back(i);
    }
    if (chosen.size() > budget) {
      const auto last = chosen.begin() + static_cast<std::ptrdiff_t>(budget);
      std::nth_element(chosen.begin(), last, chosen.end(), [this](size_t one, size_t other) {
        const int64_t first_ns = nodes_[one].path->total_ns;
        const int64_t second_ns = nodes_[other].path->total_ns;
        return first_ns != second_ns ? first_ns > second_ns : one < other;
      });
      chosen.resize(budget);
      std::sort(chosen.begin(), chosen.end());
    }
    const bool has_span = !chosen.empty() || !selected_.empty() || to_decide_->takes_sums;
    if (!has_span && !nodes_.empty()) chosen.push_back(longest_in_unit());
    for (const size_t i : chosen) summarize(nodes_[i]);
  }

  bool may_have_span(const Node& node) const {
    const Path& path = *node.path;
    const bool has_span = !path.in_compilation && !path.is_caller;
    return has_span && path.total_ns >= unit_->min_span_ns();
  }

  void note_callers() {
    for (const Node& node : nodes_) {
      if (may_have_span(node) && is_only_called(node)) node_at(node.parent).is_caller = true;
    }
  }

  // Whether the path that it lies in does nothing but call it.
  bool is_only_called(const Node& node) const {
    return node.parent != kNone && only_calls(*node_at(node.parent).path, *node.path);
  }

  size_t longest_in_unit() const {
    size_t longest = 0;
    for (size_t i = 1; i < nodes_.size(); ++i) {
      const bool is_outermost = nodes_[i].parent == kNone;
      if (is_outermost && is_longer(*nodes_[i].path, *nodes_[longest].path)) longest = i;
    }
    return longest;
  }

  // Adds a summary without its times, which `set_times` adds.
  void summarize(Node& node) {
    const Path& path = *node.path;
    const int64_t parent = parent_summary(node);
    const auto number = static_cast<int64_t>(decided_.summaries.size());
    if (parent == kNone && node.selected_index == kNone) {
      note_span(kFirstSummary + number, path.total_ns);
    }
    decided_.summaries.push_back(
        {span_id_of(path.first_id, key_), parent_id(node, parent), path.first_id, path.count,
         path.total_ns, path.shortest_ns, path.longest_ns, 0, 0, path.cpu_time_ns, unit_index_,
         path.display_name, node_module(node), enclosing_module(node), path.thread, path.scope});
    add_callers(node, kFirstSummary + number);
    node.summary = static_cast<int64_t>(times_.size());
    const auto selected = static_cast<int64_t>(selected_.size());
    const int64_t enclosing = parent == kNone ? node.selected_index : selected + parent;
    times_.push_back(
        {enclosing, path.thread, path.first_id, path.first_ns, path.last_ns, path.total_ns, {}});
  }

  // The id of a summary's parent span: a summary, a selected range, or the span above the unit.
  uint64_t parent_id(const Node& node, int64_t parent) const {
    if (parent != kNone) {
      return decided_.summaries[first_summary_ + static_cast<size_t>(parent)].span_id;
    }
    if (node.selected_index == kNone) return to_decide_->parent_span.span_id;
    return span_id_of(
        span_event_id(unit_->range(selected_[static_cast<size_t>(node.selected_index)])), key_);
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

  void add_callers(const Node& node, int64_t span) {
    const auto first = static_cast<std::ptrdiff_t>(decided_.callers.size());
    for (const Node* each = &node; is_only_called(*each) && node_at(each->parent).is_caller;) {
      each = &node_at(each->parent);
      decided_.callers.push_back({span, each->path->display_name});
    }
    std::reverse(decided_.callers.begin() + first, decided_.callers.end());
  }

  // The index of the innermost summary that the path lies in, or none.
  int64_t parent_summary(const Node& node) const {
    int64_t parent = node.parent;
    while (parent != kNone && node_at(parent).summary == kNone) parent = node_at(parent).parent;
    return parent == kNone ? kNone : node_at(parent).summary;
  }

  // Links to ranges without a span lead to the nearest span that these were folded into.
  void link_to_folded() {
    index_by_path_.clear();
    for (size_t i = 0; i < nodes_.size(); ++i) {
      const uint32_t path = nodes_[i].path->index;
      if (path >= index_by_path_.size()) index_by_path_.resize(path + 1, 0);
      index_by_path_[path] = i;
    }
    for (const FoldedForward& forward : unit_->forwards()) {
      const uint32_t path = forward.path->index;
      const Node* const index =
          path < index_by_path_.size() ? &nodes_[index_by_path_[path]] : nullptr;
      // A unit's longest range may have been taken off its path since, as a span of its own.
      if (index != nullptr && index->path == forward.path)
        linked_.find(forward.backward_row)->folded_into = span_around(*index);
    }
  }

  // The event id that the id of the span around a path is made of; 0: it is the span above the
  // unit.
  uint64_t span_around(const Node& node) const {
    const int64_t summary = node.summary != kNone ? node.summary : parent_summary(node);
    if (summary != kNone) {
      return decided_.summaries[first_summary_ + static_cast<size_t>(summary)].first_id;
    }
    if (node.selected_index == kNone) return 0;
    return span_event_id(unit_->range(selected_[static_cast<size_t>(node.selected_index)]));
  }

  // Finds how long each selected range and each path worked by itself: those of the ranges are
  // first, then those of the nodes, then that of the step around.
  void find_worked() {
    worked_.clear();
    const bool in_step = to_decide_->step.cpu_time_ns >= 0;
    if (in_step) worked_.push_back(step_work());
    first_worked_ = worked_.size();
    const auto enclosing = [&](int64_t index) {
      if (index != kNone) return static_cast<int64_t>(first_worked_) + index;
      return in_step ? 0 : TimedWork::kNone;
    };
    for (size_t i = 0; i < selected_.size(); ++i) {
      const Range& one = unit_->range(selected_[i]);
      worked_.push_back(
          {enclosing(enclosing_selected(i)), one.thread(), self_ns(i), one.cpu_time_ns});
    }
    const auto first_node = static_cast<int64_t>(selected_.size());
    for (const Node& node : nodes_) {
      const Path& path = *node.path;
      const int64_t parent = node.parent != kNone ? first_node + node.parent : node.selected_index;
      worked_.push_back({enclosing(parent), path.thread, path.self_ns, path.cpu_time_ns});
    }
    worked_times_.find(worked_);
  }

  // The step's own time: that in which none of the ranges directly in it ran.
  TimedWork step_work() const {
    const WorkedRange& step = to_decide_->step;
    int64_t own_ns = step.duration_ns;
    for (size_t i = 0; i < selected_.size(); ++i) {
      const Range& one = unit_->range(selected_[i]);
      const bool is_outermost = enclosing_selected(i) == kNone;
      if (is_outermost && one.thread() == step.thread && !overlaps(one)) {
        own_ns = wrapped_difference(own_ns, one.duration_ns);
      }
    }
    for (const Node& node : nodes_) {
      const bool is_outermost = node.parent == kNone && node.selected_index == kNone;
      if (is_outermost && node.path->thread == step.thread) {
        own_ns = wrapped_difference(own_ns, node.path->total_ns);
      }
    }
    return {TimedWork::kNone, step.thread, own_ns, step.cpu_time_ns};
  }

  int64_t self_ns(size_t selected_index) const {
    const uint32_t each = selected_[selected_index];
    const Range& one = unit_->range(each);
    if (overlaps(one)) return 0;
    return wrapped_difference(one.duration_ns, unit_->selected(each).folded.children_ns);
  }
  int64_t worked_ns(size_t selected_index) const {
    return worked_[first_worked_ + selected_index].worked_ns;
  }
  int64_t worked_ns(const Node& node) const {
    const auto index = static_cast<size_t>(&node - nodes_.data());
    return worked_[first_worked_ + selected_.size() + index].worked_ns;
  }

  void index_selected() {
    selected_by_id_.clear();
    for (size_t i = 0; i < selected_.size(); ++i) {
      selected_by_id_.push_back({span_event_id(unit_->range(selected_[i])), i});
    }
    std::sort(selected_by_id_.begin(), selected_by_id_.end());
  }

  // The index of the selected range around another one, or none.
  int64_t enclosing_selected(size_t selected_index) const {
    const uint64_t parent = unit_->selected(selected_[selected_index]).parent;
    if (parent == 0) return kNone;
    const auto found = std::lower_bound(selected_by_id_.begin(), selected_by_id_.end(),
                                        std::pair<uint64_t, size_t>{parent, 0});
    const bool comes_before =
        found != selected_by_id_.end() && found->first == parent && found->second < selected_index;
    return comes_before ? static_cast<int64_t>(found->second) : kNone;
  }

  // Adds the sums of what was folded into each selected range, and into the span above if that is
  // ours, of what lies in each summary, and of the whole unit.
  void sum_up() {
    Sums unit;
    size_t i = 0;
    for (auto selected_index = kNone; selected_index < static_cast<int64_t>(selected_.size());
         ++selected_index) {
      Sums sums;
      names_.clear();
      if (selected_index != kNone &&
          has_node(unit_->range(selected_[static_cast<size_t>(selected_index)]))) {
        ++sums.ranges;
      }
      for (; i < nodes_.size() && nodes_[i].selected_index == selected_index; ++i) {
        add(sums, nodes_[i], kNone);
      }
      unit.ranges += sums.ranges;
      unit.duration_ns = wrapped_sum(unit.duration_ns, sums.duration_ns);
      if (selected_index == kNone && !to_decide_->takes_sums) continue;
      if (sums.ranges != 0) {
        push_sums(selected_index == kNone ? kNone : first_selected_ + selected_index, false, sums);
      }
    }
    for (size_t i = 0; i < nodes_.size(); ++i) {
      const bool has_more = nodes_[i].descendants != 0 || nodes_[i].path->nodes != 0;
      if (nodes_[i].summary != kNone && has_more) sum_up_within(i);
    }
    names_.clear();
    if (unit.ranges != 0 || to_decide_->is_named) add_unit_names();
    if (first_span_ != kNoSpan) push_sums(first_span_, true, unit);
  }

  // Adds the sums of what lies in a summary. The backward nodes count that are one span with its
  // ranges.
  void sum_up_within(size_t index) {
    Sums sums;
    sums.ranges = nodes_[index].path->nodes;
    names_.clear();
    for (size_t i = index + 1; i <= index + nodes_[index].descendants; ++i) {
      add(sums, nodes_[i], static_cast<int64_t>(index));
    }
    const auto summary = static_cast<int64_t>(first_summary_) + nodes_[index].summary;
    push_sums(kFirstSummary + summary, false, sums);
  }

  struct Sums {
    int64_t ranges = 0, duration_ns = 0;
  };
  // Adds a path to the sums of what lies in the path `enclosing`, or in none. A backward node that
  // is one span with the range around it counts as a part of that.
  void add(Sums& sums, const Node& node, int64_t enclosing) {
    const Path& path = *node.path;
    sums.ranges += path.count + path.nodes;
    if (node.parent == enclosing) sums.duration_ns = wrapped_sum(sums.duration_ns, path.total_ns);
    add_name(node);
  }
  void push_sums(int64_t span, bool is_whole_unit, const Sums& sums) {
    names_.append_top(decided_.top);
    decided_.sums.push_back({unit_index_, span, is_whole_unit ? 1 : 0, sums.ranges,
                             sums.duration_ns, static_cast<int64_t>(decided_.top.size())});
  }

  void add_name(const Node& node) {
    const Path& path = *node.path;
    names_.add(path.display_name, path.count, path.self_ns, worked_ns(node));
  }

  void add_unit_names() {
    for (const Node& node : nodes_) add_name(node);
    for (size_t i = 0; i < selected_.size(); ++i) {
      names_.add(unit_->range(selected_[i]).display_name, 1, self_ns(i), worked_ns(i));
    }
  }

  // Where in its model the class of a path is called. 0 if another class is called in the same
  // place but for numbers, as in a sequence of layers, because that says nothing of this class.
  uint32_t node_module(const Node& node) const {
    const Path& path = *node.path;
    if (path.module != kSeveral) return path.module;
    const auto is_like = [&](uint32_t name, uint32_t modules) {
      return name != path.name && modules == path.modules;
    };
    for (const Path* each = enclosing(node).first_child; each != nullptr; each = each->next) {
      if (is_like(each->name, each->modules)) return 0;
    }
    const uint64_t selected_index =
        node.selected_index == kNone
            ? 0
            : span_event_id(unit_->range(selected_[static_cast<size_t>(node.selected_index)]));
    for (size_t selected = 0; node.parent == kNone && selected < selected_.size(); ++selected) {
      const Range& one = unit_->range(selected_[selected]);
      const uint64_t parent =
          decided_.selected.parent[static_cast<size_t>(first_selected_) + selected];
      if (parent == selected_index && is_like(one.name, one.modules)) return 0;
    }
    return path.modules == kSeveral ? 0 : path.modules;
  }

  // Where in its model the module is called whose calls are around a path. 0 if there is none, or
  // several.
  uint32_t enclosing_module(const Node& node) const {
    for (int64_t each = node.parent; each != kNone; each = node_at(each).parent) {
      const Path& path = *node_at(each).path;
      if (path.module == 0) continue;
      if (path.module != kSeveral) return path.module;
      return path.modules == kSeveral ? 0 : path.modules;
    }
    for (int64_t each = node.selected_index; each != kNone;) {
      const auto index = static_cast<size_t>(each);
      const uint32_t module = unit_->range(selected_[index]).module;
      if (module != 0) return module;
      each = enclosing_selected(index);
    }
    return 0;
  }

  // The path that a path hangs below.
  const Path& enclosing(const Node& node) const {
    if (node.parent != kNone) return *nodes_[static_cast<size_t>(node.parent)].path;
    return node.selected_index == kNone
               ? *unit_->folded().root
               : *unit_->selected(selected_[static_cast<size_t>(node.selected_index)]).folded.root;
  }

  const uint64_t key_;
  LinkedSpans& linked_;
  Decided& decided_;
  NameTimes names_;  // of one tree, or of all of the unit

  // The unit whose spans are added, and what was found of it.
  const Unit* unit_ = nullptr;
  const UnitToDecide* to_decide_ = nullptr;
  uint32_t unit_index_ = 0;
  int64_t first_selected_ = 0;      // of its ranges, in `decided_`
  int64_t first_span_ = kNone;      // the number of the span that is seen first; -1: the span above
  int64_t first_ns_ = 0;            // how long it took
  std::vector<uint32_t> selected_;  // the indices of its selected ranges
  std::vector<Node> nodes_;         // of its paths
  std::vector<Node> waiting_;       // not yet in `nodes_`, the next one last
  std::vector<size_t> index_by_path_;  // in `nodes_`, by the number of the path
  size_t first_summary_ = 0;           // of its summaries, in `decided_`
  std::vector<SelectedTimes> selected_times_;
  std::vector<SummaryTimes> times_;  // of its summaries
  SummaryLayout layout_;
  std::vector<std::pair<uint64_t, size_t>> selected_by_id_;  // in `selected_`, by their spans' ids
  std::vector<TimedWork> worked_;
  size_t first_worked_ = 0;  // of its selected ranges and nodes there
  WorkedTimes worked_times_;
};

}  // namespace recfn::stage
