// How a unit tells what became of its ranges.
#include <algorithm>

#include "fold/unit.hpp"
#include "model/events.hpp"

namespace recfn::folding {
namespace {

// Of a budget that is too small for all, a quarter is left for sums.
int64_t shown(int64_t rows, int64_t budget) {
  if (rows <= budget) return budget;
  return budget <= 0 ? 0 : std::max<int64_t>(0, budget - std::max<int64_t>(1, budget / 4));
}

}  // namespace

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

size_t Unit::path_count() const {
  size_t paths = folded_.size;
  for (const Kept& one : kept_) paths += one.folded.size;
  return paths;
}

void Unit::tell(int64_t place, FinishedColumns& columns) const {
  const std::vector<uint32_t> order = outermost_first();
  auto holder = static_cast<int64_t>(columns.kept.size());
  for (const uint32_t each : order) {
    const Range& one = held_[each];
    columns.kept.push_back({one.event_id, kept_[each].parent, one.row, place, one.start_ns, one.duration_ns, one.flags});
  }
  columns.add_tree(place, -1, folded_);
  for (const uint32_t each : order) columns.add_tree(place, holder++, kept_[each].folded);
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
  awaited_.each([&](Awaited* one) {
    memory_.trees.give_back(one->folded);
    if (one->stays) {
      one->stays = false, one->next = stays, stays = one;
    } else {
      memory_.awaited.give_back(one);
    }
  });
  awaited_.clear_places();
  for (; stays != nullptr; stays = stays->next) awaited_.insert(stays);
}

}  // namespace recfn::folding
