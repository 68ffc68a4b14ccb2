#include "fold/fold.hpp"

#include <algorithm>

namespace recfn::folding {

// A unit's mostly stand together, so that those of all are in order where units are.
std::vector<int64_t> Fold::kept() const {
  std::vector<const Unit*> units;
  for (const auto& [number, unit] : units_) units.push_back(unit.get());
  std::sort(units.begin(), units.end(), [](const Unit* one, const Unit* other) { return one->first_row() < other->first_row(); });
  std::vector<int64_t> rows;
  for (const Unit* unit : units) unit->held(rows);
  if (!std::is_sorted(rows.begin(), rows.end())) std::sort(rows.begin(), rows.end());
  return rows;
}

FinishedColumns Fold::finish(const std::vector<ToFinish>& units) {
  FinishedColumns columns;
  or_empty([&] { columns = finished(units); });
  return columns;
}

FinishedColumns Fold::finished(const std::vector<ToFinish>& units) {
  FinishedColumns columns;
  last_ = nullptr;
  for (size_t place = 0; place < units.size(); ++place) {
    Unit* unit = find(units[place].unit);
    if (unit == nullptr) continue;
    unit->decide(units[place].budget, units[place].least_ns);
    columns.make_room(unit->kept_count(), unit->path_count(), units.size() - place);
    unit->tell(static_cast<int64_t>(place), columns);  // at once: its paths are in the cache yet
    if (units[place].goes_on) {
      unit->begin_next_part();
    } else {
      unit->give_back();
      units_.erase(units[place].unit);
    }
  }
  if (units_.empty()) memory_.trees.shrink(), memory_.awaited.shrink();
  return columns;
}

void Fold::forget_all() {
  units_.clear();
  memory_ = Memory{};
  last_ = nullptr;
}

Unit* Fold::find(uint32_t number) const {
  const auto found = units_.find(number);
  return found == units_.end() ? nullptr : found->second.get();
}

void Fold::find_or_make(uint32_t number) {
  auto found = units_.find(number);
  if (found == units_.end()) {
    found = units_.emplace(number, std::make_unique<Unit>(memory_, limits_)).first;
  }
  last_ = found->second.get(), last_number_ = number;
}

}  // namespace recfn::folding
