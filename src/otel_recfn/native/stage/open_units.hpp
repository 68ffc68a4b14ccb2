// The units that are open, by the span above each.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "stage/stage_rows.hpp"
#include "stage/unit.hpp"

namespace recfn::stage {

class OpenUnits {
 public:
  explicit OpenUnits(const Limits& limits) : limits_(limits) {}

  // The unit below that span; it begins where none is open.
  Unit& below(const SpanAbove& above) {
    return units_.try_emplace(above, memory_, limits_).first->second;
  }

  // The open unit below that span, or null.
  Unit* find(const SpanAbove& above) {
    const auto found = units_.find(above);
    return found == units_.end() ? nullptr : &found->second;
  }

  void forget(const SpanAbove& above) { units_.erase(above); }

  // The numbers of the rows that may be kept yet, in ascending order.
  std::vector<int64_t> kept() const {
    std::vector<int64_t> rows;
    for (const auto& [above, unit] : units_) unit.held(rows);
    std::stable_sort(rows.begin(), rows.end());  // each unit's are in order, as it likes them
    return rows;
  }

 private:
  struct Hash {
    // Scrambled, since a root's span id may be a part of its trace id.
    size_t operator()(const SpanAbove& above) const {
      return scrambled(above.span_id) ^ above.trace_low;
    }
  };

  const Limits limits_;
  Memory memory_;  // outlives the units
  std::unordered_map<SpanAbove, Unit, Hash> units_;
};

}  // namespace recfn::stage
