// How a unit tells what became of its ranges.
#include <algorithm>

#include "fold/unit.hpp"

namespace recfn::folding {
namespace {

// Of a budget that is too small for all, a quarter is left for sums.
int64_t shown(int64_t rows, int64_t budget) {
  if (rows <= budget) return budget;
  return budget <= 0 ? 0 : std::max<int64_t>(0, budget - std::max<int64_t>(1, budget / 4));
}

}  // namespace

void Unit::decide(int64_t budget) {
  shrink(shown(rows_, budget));
  merge_awaited();
}

size_t Unit::path_count() const {
  size_t paths = folded_.size;
  known_.each([&](const Known* known) { paths += known->is_kept ? known->kept.folded.size : 0; });
  return paths;
}

void Unit::tell(int64_t place, FinishedColumns& columns) {
  const std::vector<Ranked> kept = kept_in_order();
  auto holder = columns.kept.size();
  for (const auto& [rank, known] : kept) {
    const Kept& one = known->kept;
    const uint64_t parent = is_kept(one.parent) ? one.parent : 0;
    columns.add_kept(place, one.range, parent, one.self_ns, rank.duration == kForced);
  }
  columns.add_tree(place, -1, folded_);
  for (const Ranked& one : kept) columns.add_tree(place, holder++, one.known->kept.folded);
}

// What belongs to ranges that haven't come lies directly in the unit; only their self times are remembered.
void Unit::merge_awaited() {
  std::vector<Known*> awaited;
  known_.each([&](Known* known) {
    if (known->is_awaited) awaited.push_back(known);
  });
  std::sort(awaited.begin(), awaited.end(), [](const Known* one, const Known* other) {
    return one->awaited.order < other->awaited.order;
  });
  size_t stay = 0;
  for (Known* known : awaited) {
    Awaited& one = known->awaited;
    memory_.trees.reserve(1, one.folded.size);
    memory_.trees.merge(folded_, one.folded);
    one.stays = one.children_ns != 0 && stay < kMaxAwaited;
    stay += one.stays ? 1 : 0;
  }
}

// Outermost first.
std::vector<Unit::Ranked> Unit::kept_in_order() const {
  std::vector<Ranked> kept;
  kept.reserve(static_cast<size_t>(kept_count_));
  known_.each([&](Known* known) {
    if (known->is_kept) kept.push_back({known->kept.rank, known});
  });
  std::sort(kept.begin(), kept.end(), [](const Ranked& one, const Ranked& other) {
    if (ranks_below(other.rank, one.rank)) return true;
    return !ranks_below(one.rank, other.rank) && one.known->kept.order < other.known->kept.order;
  });
  return kept;
}

bool Unit::is_kept(uint64_t event_id) {
  const Known* known = known_.find(event_id);
  return known != nullptr && known->is_kept;
}

void Unit::begin_next_part() {
  Known* stays = nullptr;
  known_.each([&](Known* known) {
    if (known->is_kept) memory_.trees.give_back(known->kept.folded);
    known->is_kept = false;
    if (known->is_awaited && known->awaited.stays) {
      known->awaited.highest = Rank{};
      known->next = stays, stays = known;
    } else {
      memory_.known.give_back(known);
    }
  });
  known_.clear_places();
  for (Known* known = stays; known != nullptr; known = known->next) known_.insert(known);
  heap_.clear();
  rows_ = kept_count_ = 0;
  memory_.trees.give_back(folded_);
}

}  // namespace recfn::folding
