// How a unit takes ranges, and compares them.
#include "fold/unit.hpp"

#include <algorithm>
#include <utility>

#include "model/events.hpp"

namespace recfn::folding {

Unit::Unit(Memory& memory, const Limits& limits) : memory_(memory), limits_(limits) {
  memory_.spare_held.reserve(Memory::kMostSpare);
  if (memory_.spare_held.empty()) return;
  held_.swap(memory_.spare_held.back());
  memory_.spare_held.pop_back();
}

Unit::~Unit() {
  begin_next_part();
  awaited_.each([this](Awaited* one) { memory_.awaited.give_back(one); });
  const bool is_large = held_.capacity() > Memory::kMostSpareRows;
  if (!is_large && memory_.spare_held.size() < Memory::kMostSpare) memory_.spare_held.push_back(std::move(held_));
}

void Unit::held(std::vector<int64_t>& rows) const {
  for (const Range& one : held_) rows.push_back(one.row);
}

// Behind `reserve` nothing in it allocates.
void Unit::compare(int64_t budget, bool parents_may_come) {
  memory_.comparison.compare(held_, kept_.size(), limits_.min_duration_ns, budget);
  reserve();
  Awaited* taken = take_awaited();
  await_parents();
  if (!parents_may_come) settle();
  place_kept();
  for (size_t place = held_.size(); place-- > 0;) {  // what is around a range comes after it
    if (!memory_.comparison.is_kept(place)) fold(place, parents_may_come);
  }
  keep_held();
  for (Awaited* next; taken != nullptr; taken = next) {
    next = taken->next;
    memory_.awaited.give_back(taken);
  }
}

void Unit::reserve() {
  const Comparison& all = memory_.comparison;
  const size_t folds = all.size() - all.kept();
  memory_.trees.reserve(folds, std::min(folds, all.kept() + all.not_here()) + 1);
  awaited_.reserve(all.not_here());
  memory_.awaited.reserve(all.not_here());
  memory_.ordered.reserve(awaited_.size() + all.not_here());
  memory_.spots.assign(all.size(), {});
  memory_.kept.clear();
  memory_.kept.resize(all.kept());
}

// What was awaited and has come now: a list.
Awaited* Unit::take_awaited() {
  Awaited* taken = nullptr;
  for (size_t place = kept_.size(); place < held_.size() && !awaited_.empty(); ++place) {
    Awaited* came = memory_.comparison[place].first ? awaited_.find(held_[place].event_id) : nullptr;
    if (came == nullptr) continue;
    awaited_.erase(came->event_id);
    memory_.spots[place].tree = &came->folded;
    memory_.comparison.add_children_ns(place, came->children_ns);
    came->next = taken, taken = came;
  }
  return taken;
}

void Unit::await_parents() {
  if (memory_.comparison.not_here() == 0) return;
  for (size_t place = kept_.size(); place < held_.size(); ++place) {
    const Range& one = held_[place];
    if (memory_.comparison[place].above != Comparison::kNotHere) continue;
    if (one.parent >> kOrdinalBits != one.event_id >> kOrdinalBits) continue;
    Awaited& around = awaited(one.parent);
    around.children_ns = sum(around.children_ns, one.duration_ns);
  }
}

// What was folded into those that are kept goes with them.
void Unit::place_kept() {
  for (size_t place = 0; place < kept_.size(); ++place) memory_.spots[place].tree = &kept_[place].folded;
  size_t next = 0;
  for (size_t place = 0; place < held_.size(); ++place) {
    if (!memory_.comparison.is_kept(place)) continue;
    Memory::Spot& spot = memory_.spots[place];
    const Comparison::Place& found = memory_.comparison[place];
    Kept& kept = memory_.kept[next++];
    kept = {spot.tree == nullptr ? FoldedTree{} : *spot.tree, children_ns(place), found.rank,
            found.above < Comparison::kNotHere ? held_[found.above].event_id : 0};
    spot.tree = &kept.folded;
  }
}

int64_t Unit::children_ns(size_t place) const {
  const int64_t newly = memory_.comparison[place].children_ns;
  return place < kept_.size() ? sum(kept_[place].children_ns, newly) : newly;
}

void Unit::fold(size_t place, bool parents_may_come) {
  const Range& one = held_[place];
  const uint32_t above = memory_.comparison[place].above;
  Memory::Spot& spot = memory_.spots[place];
  FoldedTree* into_it = spot.tree;
  const bool in_other = above < Comparison::kNotHere;
  Path* around = in_other ? memory_.spots[above].path : nullptr;
  spot.tree = in_other ? memory_.spots[above].tree : &holder(above, one, parents_may_come);
  const int64_t self_ns = (one.flags & kOverlapping) != 0 ? 0 : difference(one.duration_ns, children_ns(place));
  spot.path = memory_.trees.fold(*spot.tree, around, one, self_ns);
  if (into_it != nullptr) memory_.trees.merge(*spot.tree, spot.path, *into_it);
}

// What a range that lies in none of the others is folded into.
FoldedTree& Unit::holder(uint32_t above, const Range& one, bool parents_may_come) {
  return above == Comparison::kNotHere && parents_may_come ? awaited(one.parent).folded : folded_;
}

void Unit::keep_held() {
  size_t next = 0;
  for (size_t place = 0; place < held_.size(); ++place) {
    if (memory_.comparison.is_kept(place)) held_[next++] = held_[place];
  }
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
  *found = {nullptr, event_id, FoldedTree{}, 0, ++orders_, false};
  awaited_.insert(found);
  return *found;
}

}  // namespace recfn::folding
