// How a unit takes ranges. Nothing in it allocates behind `reserve`.
#include "fold/unit.hpp"

#include <algorithm>

#include "model/events.hpp"

namespace recfn::folding {

Unit::Unit(Memory& memory, int64_t budget, int64_t min_duration_ns)
    : memory_(memory), budget_(budget), min_duration_ns_(min_duration_ns) {
  known_.swap(memory.spare_known);
  heap_.swap(memory.spare_heap);
}

Unit::~Unit() {
  memory_.trees.give_back(folded_);
  known_.each([this](Known* known) {
    if (known->is_kept) memory_.trees.give_back(known->kept.folded);
    if (known->is_awaited) memory_.trees.give_back(known->awaited.folded);
    memory_.known.give_back(known);
  });
  known_.clear();
  heap_.clear();
  known_.swap(memory_.spare_known);
  heap_.swap(memory_.spare_heap);
}

void Unit::add(const Range& one) {
  Known* own = known_.find(one.event_id);
  reserve(own);
  ++rows_;
  Awaited came = take_awaited(own);
  Known* around = nullptr;
  const uint64_t parent = parent_of(one, around);
  const bool async = (one.flags & kOverlapping) != 0;
  const Rank rank = rank_of(one, came.highest);
  const int64_t self_ns = async ? 0 : difference(one.duration_ns, came.children_ns);
  if (parent != 0 && parent >> kOrdinalBits == one.event_id >> kOrdinalBits) {
    around = awaited(parent, around);
    around->awaited.children_ns = sum(around->awaited.children_ns, one.duration_ns);
    if (parent == one.event_id) own = around;
  }
  const bool full = kept_count_ >= budget_ && rank.duration != kForced;
  const bool came_before = own != nullptr && own->is_kept;
  const bool lowest = full && (heap_.empty() || heap_.goes_first(rank));
  if (rank.duration >= 0 && !came_before && !lowest) {
    if (own == nullptr) own = insert(one.event_id);
    own->kept = {one, parent, rank, self_ns, came.folded, ++orders_};
    keep(*own, around);
    while (kept_count_ > budget_ && !heap_.empty()) evict();
    return;
  }
  FoldedTree& into = parent == 0 ? folded_ : awaited(parent, around)->awaited.folded;
  memory_.trees.fold(one, self_ns, came.folded, into);
  if (own != nullptr) forget_unless_needed(own);
}

void Unit::kept(std::vector<int64_t>& rows) const {
  known_.each([&](const Known* known) {
    if (known->is_kept) rows.push_back(known->kept.range.row);
  });
}

void Unit::reserve(const Known* own) {
  reserve_fold(own != nullptr && own->is_awaited ? own->awaited.folded.size : 0);
  heap_.reserve();
}

// For a range that so many paths lie in, for what it lies in, and for what has to go for it.
void Unit::reserve_fold(size_t paths) {
  if (kept_count_ >= budget_ && !heap_.empty()) paths += heap_.top()->kept.folded.size;
  reserve_known();
  memory_.trees.reserve(2, paths);
}

void Unit::reserve_known() {
  known_.reserve(3);
  memory_.known.reserve(3);
}

Known* Unit::insert(uint64_t event_id) {
  Known* known = memory_.known.take();
  known->event_id = event_id, known->is_kept = known->is_awaited = false;
  known_.insert(known);
  return known;
}

Known* Unit::awaited(uint64_t event_id, Known* found) {
  Known* known = found != nullptr ? found : insert(event_id);
  if (known->is_awaited) return known;
  known->is_awaited = true;
  known->awaited = Awaited{};
  known->awaited.order = ++orders_;
  return known;
}

void Unit::forget_unless_needed(Known* known) {
  if (known->is_kept || known->is_awaited) return;
  known_.erase(known->event_id);
  memory_.known.give_back(known);
}

Awaited Unit::take_awaited(Known* own) {
  if (own == nullptr || !own->is_awaited) return {};
  const Awaited came = own->awaited;
  own->is_awaited = false;
  return came;
}

// Asynchronous ranges, and what comes after its parent, lie directly in the unit.
uint64_t Unit::parent_of(const Range& one, Known*& around) {
  if (one.parent == 0 || (one.flags & kOverlapping) != 0) return 0;
  around = known_.find(one.parent);
  return around != nullptr && around->is_kept ? 0 : one.parent;
}

Rank Unit::rank_of(const Range& one, const Rank& highest) const {
  const bool forced = (one.flags & kShown) != 0;
  const int64_t duration = forced ? kForced : one.duration_ns >= min_duration_ns_ ? one.duration_ns : -1;
  const Rank own{duration, one.event_id, 0}, above_highest{highest.duration, highest.first, highest.height + 1};
  return ranks_below(own, above_highest) ? above_highest : own;
}

void Unit::keep(Known& known, Known* around) {
  const Kept& one = known.kept;
  known.is_kept = true, ++kept_count_;
  if (one.rank.duration != kForced) heap_.push(&known);
  if (one.parent == 0) return;
  Awaited& above = awaited(one.parent, around)->awaited;
  if (ranks_below(above.highest, one.rank)) above.highest = one.rank;
}

void Unit::evict() {
  Known* known = heap_.pop();
  known->is_kept = false, --kept_count_;
  Kept& gone = known->kept;
  memory_.trees.fold(gone.range, gone.self_ns, gone.folded, holder(gone.parent));
  forget_unless_needed(known);
}

// What a range with that parent is folded into.
FoldedTree& Unit::holder(uint64_t parent) {
  if (parent == 0) return folded_;
  Known* found = known_.find(parent);
  if (found != nullptr && found->is_kept) return found->kept.folded;
  return awaited(parent, found)->awaited.folded;
}

void Unit::shrink(int64_t budget) {
  while (kept_count_ > budget && !heap_.empty()) {
    memory_.trees.reserve(1, heap_.top()->kept.folded.size);
    reserve_known();
    evict();
  }
}

}  // namespace recfn::folding
