// What is known of a unit besides its ranges: its extent, the end of its span, and whether more can
// come to it.
//
//     a unit is finished if                                          who sees it
//     ------------------------------------------------------------   ------------------------------
//     its span had ended before the last drain began, and no range   OpenUnits::due, by
//     that was announced directly below it is open                   `is_complete`
//     its span is ours, and its trace is complete                    Python: finish(takes_sums)
//     the end of its span can't be seen here, and it `is_quiet`      Python: finish
//     too many units are open, or too many rows wait                 OpenUnits::due, the oldest
//
// A range is announced when it begins, and comes as a row when it has ended. So a span that has
// ended isn't enough: a thread that it started may still be in a range below it.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>

#include "columns/fields.hpp"
#include "model/numbers.hpp"
#include "stage/stage_rows.hpp"

namespace recfn::stage {

// A unit's share of a batch.
struct UnitInBatch {
  ParentSpan parent_span;
  int64_t announced = 0;  // the outermost ranges that were announced below it
  int64_t rows = 0;       // the rows that become spans or are folded; what follows is of these
  int64_t first_ns = INT64_MAX, last_ns = 0;
  int64_t outermost = 0, failed = 0;
  // How long outermost ranges took whose CPU time is known, and that CPU time.
  int64_t top_ns = 0, top_cpu_ns = 0;
};

// A range whose thread's CPU time is known.
struct WorkedRange {
  uint32_t thread = 0;
  int64_t duration_ns = 0;
  int64_t cpu_time_ns = -1;  // -1: it isn't known after all
};

// A unit as Python is given it, to grant spans to it.
struct UnitSummary {
  uint64_t unit;
  int64_t start_ns, end_ns;  // its extent: that of its span, if that has ended, else of its ranges
  int64_t last_ns;           // the end of it, or of this part, by which budgets are refilled
  int64_t rows;              // the rows since its last part; so are the times below
  // Of the step that the unit lies in, or else of its outermost ranges whose CPU time is known.
  int64_t top_ns, top_cpu_ns;
  int64_t failed_rows;  // those that an exception left
  bool failed;          // an exception left one of its rows, also of earlier parts, or its span
  bool has_ended;       // its span has
};

constexpr auto fields_of(const UnitSummary*) {
  return std::array{RECFN_FIELD(UnitSummary, unit),       RECFN_FIELD(UnitSummary, start_ns),
                    RECFN_FIELD(UnitSummary, end_ns),     RECFN_FIELD(UnitSummary, last_ns),
                    RECFN_FIELD(UnitSummary, rows),       RECFN_FIELD(UnitSummary, top_ns),
                    RECFN_FIELD(UnitSummary, top_cpu_ns), RECFN_FIELD(UnitSummary, failed_rows),
                    RECFN_FIELD(UnitSummary, failed),     RECFN_FIELD(UnitSummary, has_ended)};
}

// The end of a unit's span. Times are in Unix nanoseconds.
struct SpanEnd {
  static constexpr int64_t kUnknown = -1;

  // It had certainly ended by then: a program may give it an end that is still to come.
  int64_t ended_by_ns;
  int64_t start_ns = kUnknown, end_ns = kUnknown;  // unknown if the program gave something else
  bool failed = false;
};

class UnitState {
 public:
  UnitState(uint64_t its_number, int64_t batch) : number(its_number), last_batch_(batch) {}

  const uint64_t number;  // its own in the stage; numbers count up

  void add(const UnitInBatch& share, int64_t batch) {
    open_ += share.announced;
    if (share.rows == 0) return;
    last_batch_ = batch;
    open_ = std::max<int64_t>(0, open_ - share.outermost);
    first_ns_ = std::min(first_ns_, share.first_ns);
    last_ns_ = std::max(last_ns_, share.last_ns);
    rows_ += share.rows;
    failed_ = failed_ || share.failed > 0;
    failed_rows_ += share.failed;
    top_ns_ = wrapped_sum(top_ns_, share.top_ns);
    top_cpu_ns_ = wrapped_sum(top_cpu_ns_, share.top_cpu_ns);
  }

  // The step has ended whose span is the unit's.
  void end_step(const WorkedRange& step) {
    if (!has_parts_) step_ = step;
  }

  // Its span has ended. What had ended by then may still come with the next drain.
  void end_span(const SpanEnd& end) {
    has_ended_ = true;
    span_ = end;
  }

  // Nothing more comes, whatever is open. `takes_sums`: the span above is ours, and takes the sums
  // of what is folded into it.
  void finish(bool takes_sums) {
    is_finished_ = true;
    takes_sums_ = takes_sums_ || takes_sums;
  }

  bool has_ended() const { return has_ended_; }
  bool is_finished() const { return is_finished_; }
  bool takes_sums() const { return takes_sums_; }
  int64_t rows() const { return rows_; }
  // The step that the unit lies in. It isn't known if parts of the unit were decided before the
  // step ended: its times would be added to theirs.
  const WorkedRange& step() const { return step_; }
  int64_t last_batch() const { return last_batch_; }

  // Whether nothing more can come of what had begun by that drain.
  bool is_complete(int64_t drained_ns, int64_t now_ns) {
    if (!has_ended_ || open_ > 0) return false;
    span_.ended_by_ns = std::min(span_.ended_by_ns, now_ns);  // the clock may have been set back
    return span_.ended_by_ns < drained_ns;
  }

  // Whether nothing is open that was announced, and nothing came with the last batch, or many rows
  // came.
  bool is_quiet(int64_t batch, int64_t many_rows) const {
    return open_ == 0 && (last_batch_ < batch || rows_ >= many_rows);
  }

  UnitSummary summary() const {
    UnitSummary found{};
    found.unit = number;
    found.start_ns = std::min(first_ns_, last_ns_);
    found.end_ns = last_ns_;
    found.last_ns = last_ns_;
    if (has_ended_) {
      if (span_.start_ns != SpanEnd::kUnknown) found.start_ns = span_.start_ns;
      if (span_.end_ns != SpanEnd::kUnknown) found.end_ns = span_.end_ns;
      found.last_ns = std::max(last_ns_, std::min(found.end_ns, span_.ended_by_ns));
    }
    found.rows = rows_;
    const bool in_step = step_.cpu_time_ns >= 0;
    found.top_ns = in_step ? step_.duration_ns : top_ns_;
    found.top_cpu_ns = in_step ? step_.cpu_time_ns : top_cpu_ns_;
    found.failed_rows = failed_rows_;
    found.failed = failed_ || span_.failed;
    found.has_ended = has_ended_;
    return found;
  }

  void begin_next_part() {
    rows_ = failed_rows_ = top_ns_ = top_cpu_ns_ = 0;
    step_ = {};
    has_parts_ = true;
  }

 private:
  int64_t last_batch_;  // the number of the last batch that had rows of it
  int64_t open_ = 0;    // the announced outermost ranges that haven't ended
  int64_t first_ns_ = INT64_MAX, last_ns_ = 0;
  // Since its last part.
  int64_t rows_ = 0, failed_rows_ = 0, top_ns_ = 0, top_cpu_ns_ = 0;
  WorkedRange step_;
  SpanEnd span_{INT64_MAX};
  bool failed_ = false;  // an exception left a range of it
  bool has_ended_ = false, is_finished_ = false, takes_sums_ = false;
  bool has_parts_ = false;  // some of it was decided before
};

}  // namespace recfn::stage
