// How a unit takes ranges, and compares them.
#include "fold/unit.hpp"

#include <algorithm>
#include <utility>

#include "model/events.hpp"

namespace recfn::folding {

Unit::Unit(Memory& memory, const Limits& limits) : memory_(memory), limits_(limits) {
  if (memory_.spare_held.empty()) return;
  held_.swap(memory_.spare_held.back());
  memory_.spare_held.pop_back();
  memory_.spare_rows -= held_.capacity();
}

void Unit::give_back() {
  begin_next_part();
  awaited_.each([this](Awaited* one) { memory_.awaited.give_back(one); });
  const size_t rows = held_.capacity();
  const bool fits = rows <= Memory::kMostSpareRows && memory_.spare_rows + rows <= Memory::kMostSpareRowsOfAll;
  if (!fits || memory_.spare_held.size() >= Memory::kMostSpare) return;
  memory_.spare_held.push_back(std::move(held_));
  memory_.spare_rows += rows;
}

void Unit::held(std::vector<int64_t>& rows) const {
  for (const Range& one : held_) rows.push_back(one.row);
}

void Unit::compare(const Bounds& bounds, bool parents_may_come) {
  memory_.comparison.compare(held_, bounds);
  memory_.spots.assign(memory_.comparison.size(), {});
  Awaited* taken = take_awaited();
  await_parents();
  if (!parents_may_come) settle();
  place_kept();
  fold_others(parents_may_come);
  keep_held();
  for (Awaited* next; taken != nullptr; taken = next) {
    next = taken->next;
    memory_.awaited.give_back(taken);
  }
}

// What was awaited and has come now: a list.
Awaited* Unit::take_awaited() {
  Awaited* taken = nullptr;
  for (size_t place = kept_.size(); place < held_.size() && !awaited_.empty(); ++place) {
    Awaited* came = memory_.comparison.is_first(held_, place) ? awaited_.find(held_[place].event_id) : nullptr;
    if (came == nullptr) continue;
    awaited_.erase(came->event_id);
    memory_.spots[place].tree = &came->folded;
    came->next = taken, taken = came;
  }
  return taken;
}

void Unit::await_parents() {
  if (memory_.comparison.not_here() == 0) return;
  for (size_t place = kept_.size(); place < held_.size(); ++place) {
    const Range& one = held_[place];
    if (memory_.comparison.above(place) != Comparison::kNotHere) continue;
    if (one.parent >> kOrdinalBits != one.event_id >> kOrdinalBits) continue;
    FoldedTree& around = awaited(one.parent).folded;
    around.children_ns = wrapped_sum(around.children_ns, one.duration_ns);
  }
}

// What was folded into those that are kept goes with them.
void Unit::place_kept() {
  const Comparison& all = memory_.comparison;
  for (size_t place = 0; place < kept_.size(); ++place) memory_.spots[place].tree = &kept_[place].folded;
  memory_.kept.clear();
  memory_.kept.resize(all.kept().size());
  size_t next = 0;
  for (const uint32_t place : all.kept()) {
    Memory::Spot& spot = memory_.spots[place];
    const uint32_t above = all.above(place);
    Kept& kept = memory_.kept[next++];
    kept = {spot.tree == nullptr ? FoldedTree{} : *spot.tree, all.rank(held_, place),
            above < Comparison::kNotHere ? held_[above].event_id : 0};
    spot.tree = &kept.folded;
  }
}

// What is around a range comes after it. Where a range is kept, what lies in it lies on no path.
void Unit::fold_others(bool parents_may_come) {
  const Comparison& all = memory_.comparison;
  for (size_t place = held_.size(); place-- > 0;) {
    const Range& one = held_[place];
    const uint32_t above = all.above(place);
    Memory::Spot around{};
    if (above < Comparison::kNotHere) {
      around = memory_.spots[above];
      if (place >= kept_.size()) take_time(around, held_[above], one);
    }
    if (all.is_kept(place)) continue;
    if (around.tree == nullptr) around.tree = &holder(above, one, parents_may_come);
    memory_.spots[place] = fold(one, around, memory_.spots[place].tree);
  }
}

// What lies in a range, in its thread, is no time of its own. An asynchronous one has none.
void Unit::take_time(const Memory::Spot& spot, const Range& around, const Range& one) {
  if (around.event_id >> kOrdinalBits != one.event_id >> kOrdinalBits) return;
  if (spot.path == nullptr) {
    spot.tree->children_ns = wrapped_sum(spot.tree->children_ns, one.duration_ns);
  } else if ((around.flags & kOverlapping) == 0) {
    spot.path->self_ns = wrapped_difference(spot.path->self_ns, one.duration_ns);
  }
}

Memory::Spot Unit::fold(const Range& one, const Memory::Spot& around, FoldedTree* into_it) {
  const int64_t children_ns = into_it == nullptr ? 0 : into_it->children_ns;  // of those that came earlier
  const int64_t self_ns = (one.flags & kOverlapping) != 0 ? 0 : wrapped_difference(one.duration_ns, children_ns);
  Path* path = memory_.trees.fold(*around.tree, around.path, one, self_ns);
  if (into_it != nullptr) memory_.trees.merge(*around.tree, path, *into_it);
  return {around.tree, path};
}

// What a range that lies in none of the others is folded into.
FoldedTree& Unit::holder(uint32_t above, const Range& one, bool parents_may_come) {
  return above == Comparison::kNotHere && parents_may_come ? awaited(one.parent).folded : folded_;
}

void Unit::keep_held() {
  size_t next = 0;
  for (const uint32_t place : memory_.comparison.kept()) held_[next++] = held_[place];
  held_.resize(next);
  waiting_ = 0;
  kept_.swap(memory_.kept);
}

void Unit::order_awaited() {
  std::vector<Awaited*>& all = memory_.ordered;
  all.clear();
  awaited_.each([&](Awaited* one) { all.push_back(one); });
  std::sort(all.begin(), all.end(), [](const Awaited* one, const Awaited* other) { return one->order < other->order; });
}

// What belongs to ranges that haven't come lies directly in the unit.
void Unit::settle() {
  order_awaited();
  for (Awaited* one : memory_.ordered) memory_.trees.merge(folded_, nullptr, one->folded);
}

Awaited& Unit::awaited(uint64_t event_id) {
  Awaited* found = awaited_.find(event_id);
  if (found != nullptr) return *found;
  found = memory_.awaited.take();
  *found = {nullptr, event_id, FoldedTree{}, ++orders_, false};
  awaited_.insert(found);
  return *found;
}

}  // namespace recfn::folding
