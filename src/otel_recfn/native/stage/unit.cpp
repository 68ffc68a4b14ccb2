#include "stage/unit.hpp"

#include <algorithm>
#include <utility>

#include "model/events.hpp"

namespace recfn::stage {
namespace {

// Of a budget that is too small for all, a quarter is left for sums.
int64_t shown(int64_t rows, int64_t budget) {
  if (rows <= budget) return budget;
  return budget <= 0 ? 0 : std::max<int64_t>(0, budget - std::max<int64_t>(1, budget / 4));
}

}  // namespace

Unit::Unit(Memory& memory, const Limits& limits) : memory_(memory), limits_(limits) {
  if (memory_.spare_held.empty()) return;
  held_.swap(memory_.spare_held.back());
  memory_.spare_held.pop_back();
  memory_.spare_rows -= held_.capacity();
}

void Unit::give_back() {
  begin_next_part();
  awaited_.each([this](const OfId<Awaited*>& one) { memory_.awaited.give_back(one.value); });
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
  for (size_t place = kept_.size(); place < held_.size() && awaited_.size() != 0; ++place) {
    OfId<Awaited*>* const found = memory_.comparison.is_first(held_, place) ? awaited_.find(held_[place].event_id) : nullptr;
    if (found == nullptr) continue;
    Awaited* came = found->value;
    awaited_.erase(found);
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
  awaited_.each([&](const OfId<Awaited*>& one) { all.push_back(one.value); });
  std::sort(all.begin(), all.end(), [](const Awaited* one, const Awaited* other) { return one->order < other->order; });
}

// What belongs to ranges that haven't come lies directly in the unit.
void Unit::settle() {
  order_awaited();
  for (Awaited* one : memory_.ordered) memory_.trees.merge(folded_, nullptr, one->folded);
}

Awaited& Unit::awaited(uint64_t event_id) {
  if (const OfId<Awaited*>* const found = awaited_.find(event_id)) return *found->value;
  Awaited* made = memory_.awaited.take();
  *made = {nullptr, event_id, FoldedTree{}, ++orders_, false};
  awaited_.insert({event_id, made});
  return *made;
}

void Unit::decide(int64_t budget, int64_t least_ns) {
  const int64_t spans = std::min(shown(rows_, budget), limits_.budget);
  compare({spans, limits_.budget, least_ns}, false);
  note_what_stays();
}

// Only their self times are remembered.
void Unit::note_what_stays() {
  size_t stay = 0;
  order_awaited();
  for (Awaited* one : memory_.ordered) {
    one->stays = one->folded.children_ns != 0 && stay < kMaxAwaited;
    stay += one->stays ? 1 : 0;
  }
}

std::vector<uint32_t> Unit::outermost_first() const {
  std::vector<uint32_t> order(kept_.size());
  for (uint32_t place = 0; place < order.size(); ++place) order[place] = place;
  std::sort(order.begin(), order.end(), [this](uint32_t one, uint32_t other) {
    if (ranks_below(kept_[other].rank, kept_[one].rank)) return true;
    return !ranks_below(kept_[one].rank, kept_[other].rank) && one < other;
  });
  return order;
}

void Unit::begin_next_part() {
  for (Kept& one : kept_) memory_.trees.give_back(one.folded);
  memory_.trees.give_back(folded_);
  held_.clear();
  kept_.clear();
  rows_ = waiting_ = 0;
  Awaited* stays = nullptr;
  awaited_.each([&](const OfId<Awaited*>& each) {
    Awaited* one = each.value;
    memory_.trees.give_back(one->folded);
    if (one->stays) {
      one->stays = false, one->next = stays, stays = one;
    } else {
      memory_.awaited.give_back(one);
    }
  });
  awaited_.clear_places();
  for (; stays != nullptr; stays = stays->next) awaited_.insert({stays->event_id, stays});
}

}  // namespace recfn::stage
