// What a unit's decision is given: by Python, how many spans it may have, and which spans samples
// of Python give it; by the stage, its extent and the step that it lies in.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "columns/fields.hpp"
#include "stage/stage_rows.hpp"
#include "stage/summary_times.hpp"
#include "stage/unit_state.hpp"

namespace recfn::stage {

// How many spans a unit may have.
struct GrantRow {
  uint64_t unit;
  int64_t spans;
  int64_t is_named;  // its sums have names even if nothing is folded
};

constexpr auto fields_of(const GrantRow*) {
  return std::array{RECFN_FIELD(GrantRow, unit), RECFN_FIELD(GrantRow, spans),
                    RECFN_FIELD(GrantRow, is_named)};
}

// A span of what samples found in a unit. The unit's summaries don't overlap with it.
struct SampledRow {
  uint64_t unit;
  uint64_t parent;  // the event id of the range around it; 0: it lies directly in the unit
  uint64_t thread;  // the recorder's number
  int64_t start_ns, end_ns;
};

constexpr auto fields_of(const SampledRow*) {
  return std::array{RECFN_FIELD(SampledRow, unit), RECFN_FIELD(SampledRow, parent),
                    RECFN_FIELD(SampledRow, thread), RECFN_FIELD(SampledRow, start_ns),
                    RECFN_FIELD(SampledRow, end_ns)};
}

// A unit that is decided, or a part of it.
struct UnitToDecide {
  ParentSpan parent_span;
  int64_t budget;            // how many spans it may have
  int64_t start_ns, end_ns;  // its extent
  WorkedRange step;          // the step that it lies in, if any
  bool takes_sums;           // the span above it takes what was folded directly below it
  bool is_named;             // its sums have names even if nothing is folded
  std::vector<SelectedTimes> sampled;
};

}  // namespace recfn::stage
