// What spans say of the ranges that were folded: which sums stand on which span, and which paths have a span of their own.
//
// What is folded directly into a unit whose span can't say so stands on a summary of its path with the most time. What is left of
// a unit's budget goes to further summaries, those of the paths with the most time, if they took long enough.
//
// A summary is as long as its ranges were together and begins where the first of them began, moved so that it stays within its
// parent; where ranges ran beside each other for longer than the parent, it is cut there.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "columns/table_view.hpp"
#include "fold/finished.hpp"
#include "stage/stage_rows.hpp"

namespace recfn::stage {

constexpr int64_t kLeastShare = 1000;

// A unit that is decided, or (`goes_on`) a part of it.
struct UnitToDecide {
  SpanAbove above;
  int64_t number, budget;    // how many spans it may have
  int64_t start_ns, end_ns;  // from when to when it goes
  uint8_t goes_on;
  uint8_t tells_itself;  // the span above it takes what was folded directly below it

  // What took less is no span of its own, unless it failed: a page of the unit shows nothing of it.
  int64_t least_ns() const { return (end_ns - start_ns) / kLeastShare; }
};

// Sums of what was folded into a kept range, or (-1) directly into its unit.
struct SumsRow {
  int64_t unit, holder, ranges, duration_ns;
  int64_t top_end;  // where its names end; they begin where those of the sums before it end
};

// A name that took much of the time of some sums.
struct TopRow {
  int64_t count, self_ns;
  uint32_t name;
};

// A path that has a span.
struct ToldPath {
  size_t path;
  int64_t parent;  // the path whose summary it is a child of; -1: it is a child of its path's holder
  int64_t start_ns, end_ns;
  int64_t sums;  // those that it tells, -1 for none. Paths that tell some come first.
};

class FoldedTeller {
 public:
  FoldedTeller(const folding::FinishedColumns& done, const TableView<UnitToDecide>& units) : done_(done), units_(units) {}

  void tell();

  UnfilledVector<SumsRow> sums;
  UnfilledVector<TopRow> top;
  std::vector<ToldPath> told;

 private:
  struct Candidate {
    int64_t total_ns;
    size_t path;
  };
  struct Name {
    uint32_t name;
    size_t first;  // of its paths
    int64_t count, self_ns;
  };

  size_t end_of_holder(size_t first) const;
  size_t sum_up(size_t first, size_t last);
  void clear_names(size_t paths);
  Name& name_of(uint32_t name, size_t path);
  void tell_names();
  void choose();
  void choose_of_unit(std::vector<Candidate>& paths, size_t budget);
  void summarize(size_t path, int64_t sums);

  static constexpr size_t kTopNames = 3;
  static constexpr int64_t kNotShown = -1;
  static constexpr uint32_t kNoName = UINT32_MAX;

  const folding::FinishedColumns& done_;
  const TableView<UnitToDecide>& units_;
  std::vector<int64_t> shown_;        // the summary of each path
  std::vector<Name> names_;           // of one holder
  std::vector<uint32_t> name_slots_;  // where each stands there: a hash table
  std::vector<int64_t> left_;         // of the budget of each unit
  std::vector<size_t> chosen_;
};

}  // namespace recfn::stage
