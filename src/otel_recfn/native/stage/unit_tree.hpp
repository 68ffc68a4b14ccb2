// A unit that is decided, as one tree: its selected ranges, and the paths that its other ranges
// were folded into.
//
//     Net                selected range 0, in none
//     ├─ layer           node 0: a path folded into range 0, in no other node
//     │  └─ aten::mm     node 1: a path in node 0
//     └─ aten::add       selected range 1, in range 0
//        └─ aten::empty  node 2: a path folded into range 1, in no other node
//
// Selected ranges are numbered with the outermost first. Nodes are in depth-first order: first
// those folded into the span above the unit, then those of each selected range. Of several paths in
// one, that with the most time is first.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "model/numbers.hpp"
#include "stage/unit.hpp"

namespace recfn::stage {

constexpr int64_t kNoIndex = -1;

// A path in the tree.
struct PathNode {
  const Path* path;
  int64_t selected;            // the selected range that it was folded into, or none
  int64_t parent;              // the node of the path that it lies in, or none
  size_t descendants = 0;      // how many lie in it, which follow it
  int64_t summary = kNoIndex;  // the number of its own span among the unit's summaries, or none
  bool is_caller = false;      // it only calls a path in it, which has a summary in its stead

  bool is_outermost() const { return parent == kNoIndex && selected == kNoIndex; }
};

class UnitTree {
 public:
  // Begins with another unit, after `Unit::decide`.
  void set(const Unit& unit) {
    unit_ = &unit;
    selected_ = unit.outermost_first();
    find_enclosing();
    nodes_.clear();
    add_paths(unit.folded(), kNoIndex);
    for (size_t selected = 0; selected < selected_.size(); ++selected) {
      add_paths(unit.selected(selected_[selected]).folded, static_cast<int64_t>(selected));
    }
    for (size_t i = nodes_.size(); i-- > 0;) {
      const PathNode& node = nodes_[i];
      if (node.parent != kNoIndex) this->node(node.parent).descendants += node.descendants + 1;
    }
  }

  const Unit& unit() const { return *unit_; }

  size_t selected_count() const { return selected_.size(); }
  const Range& range(size_t selected) const { return unit_->range(selected_[selected]); }
  const Selected& selected(size_t selected) const { return unit_->selected(selected_[selected]); }
  // The selected range around another one, or none.
  int64_t enclosing_selected(size_t selected) const { return enclosing_[selected]; }
  // The event id of the span of a selected range; 0 for none: that of the span above the unit.
  uint64_t selected_event_id(int64_t selected) const {
    return selected == kNoIndex ? 0 : span_event_id(range(static_cast<size_t>(selected)));
  }
  int64_t self_ns(size_t selected) const {
    const Range& one = range(selected);
    if (overlaps(one)) return 0;
    return wrapped_difference(one.duration_ns, this->selected(selected).folded.children_ns);
  }

  std::vector<PathNode>& nodes() { return nodes_; }
  const std::vector<PathNode>& nodes() const { return nodes_; }
  PathNode& node(int64_t index) { return nodes_[static_cast<size_t>(index)]; }
  const PathNode& node(int64_t index) const { return nodes_[static_cast<size_t>(index)]; }

  // The path that a path hangs below.
  const Path& enclosing_path(const PathNode& one) const {
    if (one.parent != kNoIndex) return *node(one.parent).path;
    if (one.selected == kNoIndex) return *unit_->folded().root;
    return *selected(static_cast<size_t>(one.selected)).folded.root;
  }

  // Where in its model the module is called whose calls are around a path. 0 if there is none, or
  // several.
  uint32_t enclosing_module(const PathNode& one) const {
    for (int64_t each = one.parent; each != kNoIndex; each = node(each).parent) {
      const Path& path = *node(each).path;
      if (path.module == 0) continue;
      if (path.module != kSeveral) return path.module;
      return path.modules == kSeveral ? 0 : path.modules;
    }
    for (int64_t each = one.selected; each != kNoIndex;) {
      const auto selected = static_cast<size_t>(each);
      if (range(selected).module != 0) return range(selected).module;
      each = enclosing_selected(selected);
    }
    return 0;
  }

 private:
  // Finds the selected range around each. It comes before those in it, unless times are nonsense.
  void find_enclosing() {
    by_id_.clear();
    for (size_t selected = 0; selected < selected_.size(); ++selected) {
      by_id_.push_back({span_event_id(range(selected)), selected});
    }
    std::sort(by_id_.begin(), by_id_.end());
    enclosing_.assign(selected_.size(), kNoIndex);
    for (size_t selected = 0; selected < selected_.size(); ++selected) {
      const uint64_t parent = this->selected(selected).parent;
      if (parent == 0) continue;
      const auto found =
          std::lower_bound(by_id_.begin(), by_id_.end(), std::pair<uint64_t, size_t>{parent, 0});
      if (found != by_id_.end() && found->first == parent && found->second < selected) {
        enclosing_[selected] = static_cast<int64_t>(found->second);
      }
    }
  }

  void add_paths(const FoldedTree& tree, int64_t selected) {
    if (tree.root != nullptr) add_children(*tree.root, selected, kNoIndex);
    while (!waiting_.empty()) {
      const PathNode next = waiting_.back();
      waiting_.pop_back();
      const auto index = static_cast<int64_t>(nodes_.size());
      nodes_.push_back(next);
      if (next.path->first_child != nullptr) add_children(*next.path, selected, index);
    }
  }

  void add_children(const Path& path, int64_t selected, int64_t parent) {
    const auto first = static_cast<std::ptrdiff_t>(waiting_.size());
    for (const Path* each = path.first_child; each != nullptr; each = each->next) {
      waiting_.push_back({each, selected, parent});
    }
    std::sort(waiting_.begin() + first, waiting_.end(),
              [](const PathNode& one, const PathNode& other) {
                return is_longer(*other.path, *one.path);
              });
  }

  const Unit* unit_ = nullptr;
  std::vector<uint32_t> selected_;                  // their indices in the unit
  std::vector<int64_t> enclosing_;                  // of each
  std::vector<std::pair<uint64_t, size_t>> by_id_;  // their numbers by the ids of their spans
  std::vector<PathNode> nodes_;
  std::vector<PathNode> waiting_;  // not yet in `nodes_`, the next one last
};

}  // namespace recfn::stage
