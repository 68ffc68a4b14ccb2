// The units that are open: by the span above each, and by number, in the order in which they began.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "stage/stage_rows.hpp"
#include "stage/unit.hpp"

namespace recfn::stage {

// A unit whose span isn't known to have ended, and to which more may come.
struct UnendedUnit {
  uint64_t unit;
  // Nothing is open in it and nothing came for a while, so that it may have ended unseen.
  bool is_quiet;
};

constexpr auto fields_of(const UnendedUnit*) {
  return std::array{RECFN_FIELD(UnendedUnit, unit), RECFN_FIELD(UnendedUnit, is_quiet)};
}

class OpenUnits {
 public:
  explicit OpenUnits(const Limits& limits) : limits_(limits) {}

  // From here on, what is added is of the next batch, or nothing comes for as long as a batch
  // takes.
  void begin_batch() { ++batches_; }

  // The unit below that span, and whether it begins now.
  std::pair<Unit*, bool> below(const ParentSpan& parent_span) {
    const auto [position, is_new] =
        units_.try_emplace(parent_span, memory_, limits_, last_number_ + 1, batches_);
    Unit* const unit = &position->second;
    if (is_new) by_number_.emplace_hint(by_number_.end(), ++last_number_, Entry{unit, parent_span});
    return {unit, is_new};
  }

  void add(Unit& unit, const UnitInBatch& share) { unit.state.add(share, batches_); }

  // The open unit below that span, or of that number; null if there is none.
  Unit* find(const ParentSpan& parent_span) {
    const auto found = units_.find(parent_span);
    return found == units_.end() ? nullptr : &found->second;
  }
  Unit* find(uint64_t number) {
    const auto found = by_number_.find(number);
    return found == by_number_.end() ? nullptr : found->second.unit;
  }

  // The span above an open unit.
  const ParentSpan& parent_span(uint64_t number) const { return by_number_.at(number).parent_span; }

  void forget(uint64_t number) {
    const auto found = by_number_.find(number);
    units_.erase(found->second.parent_span);
    by_number_.erase(found);
  }

  // Nothing that waits may wait any longer, as the names are forgotten.
  void add_nodes() {
    for (auto& [parent_span, unit] : units_) unit.add_nodes();
  }

  std::vector<UnendedUnit> unended() const {
    std::vector<UnendedUnit> found;
    for (const auto& [number, entry] : by_number_) {
      const UnitState& state = entry.unit->state;
      if (!state.has_ended() && !state.is_finished()) {
        found.push_back({number, state.is_quiet(batches_, limits_.many_rows)});
      }
    }
    return found;
  }

  // The units to which nothing more can come, and those that are too many, or have too many of the
  // rows that wait.
  std::vector<UnitSummary> due(int64_t drained_ns, int64_t now_ns, int64_t waiting_rows) {
    for (const auto& [number, entry] : by_number_) {
      if (entry.unit->state.is_complete(drained_ns, now_ns)) entry.unit->state.finish(false);
    }
    if (waiting_rows > limits_.max_rows ||
        static_cast<int64_t>(by_number_.size()) > limits_.max_units) {
      finish_excess(waiting_rows);
    }
    return summaries([](const UnitState& state) { return state.is_finished(); });
  }

  // Those that have so many rows.
  std::vector<UnitSummary> with_rows(int64_t min_rows) const {
    return summaries([min_rows](const UnitState& state) { return state.rows() >= min_rows; });
  }

  // The numbers of the rows that may be kept yet, in ascending order.
  std::vector<int64_t> selected() const {
    std::vector<int64_t> rows;
    for (const auto& [parent_span, unit] : units_) unit.candidates(rows);
    std::stable_sort(rows.begin(), rows.end());  // each unit's are in order, as it likes them
    return rows;
  }

 private:
  struct Hash {
    // Scrambled, since a root's span id may be a part of its trace id.
    size_t operator()(const ParentSpan& parent_span) const {
      return scrambled(parent_span.span_id) ^ parent_span.trace_low;
    }
  };
  struct Entry {
    Unit* unit;
    ParentSpan parent_span;
  };

  template <typename Wanted>
  std::vector<UnitSummary> summaries(Wanted wanted) const {
    std::vector<UnitSummary> found;
    for (const auto& [number, entry] : by_number_) {
      if (wanted(entry.unit->state)) found.push_back(entry.unit->state.summary());
    }
    return found;
  }

  // Units that had no rows for longest: as many as there are too many, or those that are left when
  // the newest ones have all the rows that may wait.
  void finish_excess(int64_t waiting_rows) {
    std::vector<UnitState*> oldest_first;
    for (const auto& [number, entry] : by_number_) oldest_first.push_back(&entry.unit->state);
    const auto is_older = [](const UnitState* one, const UnitState* other) {
      return one->last_batch() < other->last_batch();
    };
    std::stable_sort(oldest_first.begin(), oldest_first.end(), is_older);
    if (waiting_rows <= limits_.max_rows) {
      const auto excess = oldest_first.size() - static_cast<size_t>(limits_.max_units);
      for (size_t position = 0; position < excess; ++position) {
        oldest_first[position]->finish(false);
      }
      return;
    }
    int64_t rows = 0;
    for (auto state = oldest_first.rbegin(); state != oldest_first.rend(); ++state) {
      if ((*state)->is_finished()) continue;
      rows += std::min((*state)->rows(), limits_.budget + limits_.max_waiting);
      if (rows > limits_.max_rows) (*state)->finish(false);
    }
  }

  const Limits limits_;
  Memory memory_;  // outlives the units
  std::unordered_map<ParentSpan, Unit, Hash> units_;
  std::map<uint64_t, Entry> by_number_;
  uint64_t last_number_ = 0;
  int64_t batches_ = 0;  // the number of the last batch
};

}  // namespace recfn::stage
