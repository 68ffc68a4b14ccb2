// The units that are open. Each keeps some of its ranges, and folds the others into the nearest
// kept one around them: in the end all that took a thousandth of it, if it may have so many spans,
// else those that its tree of calls has a span of their own for. `tests/models/folding.py` does the
// same, to be read.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <vector>

#include "stage/call_paths.hpp"
#include "stage/folded_tree.hpp"
#include "stage/stage_rows.hpp"

namespace recfn::stage {

struct Limits {
  int64_t budget, most_waiting;
};

// A range that is kept for now, and what was folded into it.
struct Kept {
  FoldedTree folded;
  Rank rank;
  uint64_t parent;  // a kept one, or 0
};

// What all units are made of, and what they need while they are compared.
struct Memory {
  struct Spot {
    FoldedTree* tree;  // what it was folded into, or what was folded into it
    Path* path;        // null where it is kept
    uint32_t node;     // of a range around a backward node, where both are kept, the node's place
  };

  Comparison comparison;
  CallPaths paths;
  std::vector<Spot> spots;
  std::vector<Kept> kept;  // what those that are kept become
};

class Unit {
  using Awaited = std::map<uint64_t, FoldedTree>;  // what came of ranges that haven't come
                                                   // themselves, by their event ids

 public:
  Unit(Memory& memory, const Limits& limits) : memory_(memory), limits_(limits) {}

  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;

  uint32_t in_batch = UINT32_MAX;  // its place among the units of the batch that is planned

  // So many ranges are added next.
  void expect(size_t ranges) {
    if (held_.empty()) held_.reserve(ranges);
  }

  // The next range that has ended.
  void add(const Range& one) {
    if (waiting_ >= limits_.most_waiting) fold_some();
    held_.emplace_back() = one;
    ++waiting_;
  }

  // The numbers of the rows that may be kept yet.
  void held(std::vector<int64_t>& rows) const {
    for (const Range& one : held_) rows.push_back(one.row);
  }

  // Before it is told: folds what is too much, or too short for a span of its own. It took so long,
  // or that part of it.
  void decide(int64_t budget, int64_t duration_ns) {
    const int64_t spans = std::min(budget, limits_.budget);
    least_told_ns_ = duration_ns / kLeastShare;
    const auto is_long = [this](const Range& one) {
      return one.duration_ns >= least_told_ns_ && (one.flags & kInCompilation) == 0;
    };
    if (std::count_if(held_.begin(), held_.end(), is_long) <= spans) {
      memory_.comparison.compare(held_, {spans, limits_.budget, least_told_ns_});
      if (left_out_ns() <= duration_ns / kLeftOut) return fold_held(false);
    }
    memory_.comparison.compare(held_, {0, limits_.budget, 0});
    fold_held(false, spans, duration_ns);
  }

  // Sums of what took less have no span.
  int64_t least_told_ns() const { return least_told_ns_; }

  // The places of the ranges that are kept, outermost first, and what is told of them.
  std::vector<uint32_t> outermost_first() const {
    std::vector<uint32_t> order(kept_.size());
    for (uint32_t place = 0; place < order.size(); ++place) order[place] = place;
    std::sort(order.begin(), order.end(), [this](uint32_t one, uint32_t other) {
      if (ranks_below(kept_[other].rank, kept_[one].rank)) return true;
      return !ranks_below(kept_[one].rank, kept_[other].rank) && one < other;
    });
    return order;
  }

  const Range& range(uint32_t place) const { return held_[place]; }
  const Kept& kept(uint32_t place) const { return kept_[place]; }
  // What was folded into the span above the unit.
  const FoldedTree& folded() const { return folded_; }

  // What was told is forgotten; more will come. Of ranges that are awaited yet only the self times
  // are remembered.
  void begin_next_part() {
    forget_told();
    size_t stay = 0;
    for (auto one = awaited_.begin(); one != awaited_.end();) {
      one = one->second.children_ns != 0 && stay++ < kMaxAwaited ? std::next(one)
                                                                 : awaited_.erase(one);
    }
  }

 private:
  void fold_some() {
    memory_.comparison.compare(held_, {limits_.budget, limits_.budget, 0});
    fold_held(true);
  }

  // How long those took that are not kept and lie in kept ones or directly in the unit, but for
  // what is never kept.
  int64_t left_out_ns() const {
    const Comparison& all = memory_.comparison;
    int64_t sum_ns = outer_ns(folded_);
    for (const Kept& one : kept_) sum_ns = wrapped_sum(sum_ns, outer_ns(one.folded));
    for (size_t place = 0; place < held_.size(); ++place) {
      const bool is_outer =
          all.above(place) >= Comparison::kNotHere || all.is_kept(all.above(place));
      const bool may_be_kept = (held_[place].flags & kInCompilation) == 0;
      if (is_outer && may_be_kept && !all.is_kept(place))
        sum_ns = wrapped_sum(sum_ns, held_[place].duration_ns);
    }
    return sum_ns;
  }
  static int64_t outer_ns(const FoldedTree& tree) {
    int64_t sum_ns = 0;
    for (const Path* path = tree.root == nullptr ? nullptr : tree.root->first_below;
         path != nullptr; path = path->next) {
      if (!path->in_compilation) sum_ns = wrapped_sum(sum_ns, path->total_ns);
    }
    return sum_ns;
  }

  // What was compared. `tree`: how many spans the unit's tree of calls may have; 0: none is asked
  // for.
  void fold_held(bool parents_may_come, int64_t tree = 0, int64_t duration_ns = 0) {
    memory_.spots.assign(memory_.comparison.size(), {nullptr, nullptr, kNoNode});
    const std::vector<Awaited::node_type> taken = take_awaited();
    await_parents();
    if (!parents_may_come) settle();
    for (size_t place = 0; place < kept_.size(); ++place)
      memory_.spots[place].tree = &kept_[place].folded;
    if (tree > 0) {
      const auto tree_of = [this](uint32_t place) { return memory_.spots[place].tree; };
      least_told_ns_ =
          memory_.paths.choose(held_, memory_.comparison, tree, duration_ns, folded_, tree_of);
    }
    if (!parents_may_come) find_nodes();
    place_kept();
    fold_others(parents_may_come);
    if (!parents_may_come) join_nodes();
    keep_held();
  }

  // What was awaited and has come now.
  std::vector<Awaited::node_type> take_awaited() {
    std::vector<Awaited::node_type> taken;
    for (size_t place = kept_.size(); place < held_.size() && !awaited_.empty(); ++place) {
      const auto found = awaited_.find(held_[place].event_id);
      if (found == awaited_.end()) continue;
      memory_.spots[place].tree = &found->second;
      taken.push_back(awaited_.extract(found));
    }
    return taken;
  }

  void await_parents() {
    if (memory_.comparison.not_here() == 0) return;
    for (size_t place = kept_.size(); place < held_.size(); ++place) {
      const Range& one = held_[place];
      if (memory_.comparison.above(place) != Comparison::kNotHere) continue;
      if (one.parent >> kOrdinalBits != one.event_id >> kOrdinalBits) continue;
      FoldedTree& around = awaited_[one.parent];
      around.children_ns = wrapped_sum(around.children_ns, one.duration_ns);
    }
  }

  // A backward node is kept where the range around it is: they are told as one.
  void find_nodes() {
    Comparison& all = memory_.comparison;
    for (uint32_t place = 0; place < held_.size(); ++place) {
      if (!all.is_node(held_, place) || !all.is_kept(all.above(place))) continue;
      Memory::Spot& around = memory_.spots[all.above(place)];
      const bool is_apart = Comparison::comes_first(held_[all.above(place)]) &&
                            !Comparison::comes_first(held_[place]);
      if (is_apart || around.node != kNoNode) continue;
      around.node = place, all.keep(place);
    }
    all.list_kept();
  }

  // The span has the place of the range around, and all else of the node.
  void join_nodes() {
    for (const uint32_t place : memory_.comparison.kept()) {
      const uint32_t node = memory_.spots[place].node;
      if (node == kNoNode) continue;
      FoldedTree &into = *memory_.spots[place].tree, &of_node = *memory_.spots[node].tree;
      paths_.fold_around_node(into, held_[place]);
      into.children_ns =
          wrapped_sum(wrapped_difference(held_[place].duration_ns, held_[node].duration_ns),
                      of_node.children_ns);
      paths_.merge(into, nullptr, of_node);
      held_[place].event_id = held_[node].event_id, held_[place].row = held_[node].row;
    }
  }

  bool is_joined(uint32_t place) const {
    const uint32_t above = memory_.comparison.above(place);
    return above < Comparison::kNotHere && memory_.spots[above].node == place;
  }

  // By which the span of a kept one is known.
  uint64_t told_id(uint32_t place) const {
    const uint32_t node = memory_.spots[place].node;
    return held_[node == kNoNode ? place : node].event_id;
  }

  // What was folded into those that are kept goes with them.
  void place_kept() {
    const Comparison& all = memory_.comparison;
    memory_.kept.clear();
    memory_.kept.resize(all.kept().size());
    size_t next = 0;
    for (const uint32_t place : all.kept()) {
      Memory::Spot& spot = memory_.spots[place];
      const uint32_t above = all.above(place);
      Kept& kept = memory_.kept[next++];
      kept = {spot.tree == nullptr ? FoldedTree{} : *spot.tree, all.rank(held_, place),
              above < Comparison::kNotHere ? told_id(above) : 0};
      spot.tree = &kept.folded;
    }
  }

  // What is around a range comes after it. Where a range is kept, what lies in it lies on no path.
  void fold_others(bool parents_may_come) {
    const Comparison& all = memory_.comparison;
    for (size_t place = held_.size(); place-- > 0;) {
      const Range& one = held_[place];
      const uint32_t above = all.above(place);
      Memory::Spot around{nullptr, nullptr, kNoNode};
      if (above < Comparison::kNotHere) {
        around = memory_.spots[above];
        if (place >= kept_.size()) take_time(around, held_[above], one);
      }
      if (all.is_kept(place)) continue;
      if (around.tree == nullptr) around.tree = &holder(above, one, parents_may_come);
      memory_.spots[place] = fold(one, around, memory_.spots[place].tree, parents_may_come);
    }
  }

  // What lies in a range, in its thread, is no time of its own. An asynchronous one has none.
  static void take_time(const Memory::Spot& spot, const Range& around, const Range& one) {
    if (around.event_id >> kOrdinalBits != one.event_id >> kOrdinalBits) return;
    if (spot.path == nullptr) {
      spot.tree->children_ns = wrapped_sum(spot.tree->children_ns, one.duration_ns);
    } else if ((around.flags & kOverlapping) == 0) {
      spot.path->self_ns = wrapped_difference(spot.path->self_ns, one.duration_ns);
    }
  }

  // Where more may come, its row may be forgotten before it is told.
  Memory::Spot fold(Range one, const Memory::Spot& around, FoldedTree* into_it,
                    bool more_may_come) {
    if (more_may_come) one.row = -1;
    const int64_t children_ns =
        into_it == nullptr ? 0 : into_it->children_ns;  // of those that came earlier
    const int64_t self_ns =
        (one.flags & kOverlapping) != 0 ? 0 : wrapped_difference(one.duration_ns, children_ns);
    Path* path = paths_.fold(*around.tree, around.path, one, self_ns);
    if (into_it != nullptr) paths_.merge(*around.tree, path, *into_it);
    return {around.tree, path, kNoNode};
  }

  // What a range that lies in none of the others is folded into.
  FoldedTree& holder(uint32_t above, const Range& one, bool parents_may_come) {
    return above == Comparison::kNotHere && parents_may_come ? awaited_[one.parent] : folded_;
  }

  void keep_held() {
    size_t next = 0, from = 0;
    for (const uint32_t place : memory_.comparison.kept()) {
      const Kept kept = memory_.kept[from++];
      if (is_joined(place)) continue;
      held_[next] = held_[place], memory_.kept[next++] = kept;
    }
    held_.resize(next), memory_.kept.resize(next);
    waiting_ = 0;
    kept_.swap(memory_.kept);
  }

  // What belongs to ranges that haven't come lies directly in the unit.
  void settle() {
    for (auto& [event_id, tree] : awaited_) paths_.merge(folded_, nullptr, tree);
  }

  void forget_told() {
    paths_.clear(), folded_.root = nullptr;
    for (auto& [event_id, tree] : awaited_) tree.root = nullptr;
    held_.clear(), kept_.clear();
    waiting_ = 0;
  }

  static constexpr uint32_t kNoNode = UINT32_MAX;

  Memory& memory_;
  const Limits limits_;
  int64_t least_told_ns_ = 0;
  int64_t waiting_ = 0;  // how many were not compared yet
  Paths paths_;
  FoldedTree folded_;
  Ranges held_;  // as they came: those that were kept when ranges were compared last, and those
                 // that wait
  std::vector<Kept> kept_;  // of the first ones
  Awaited awaited_;
};

}  // namespace recfn::stage
