// What spans say of a unit that is decided: which of its ranges are kept, which sums of the others stand on which span, and which
// of their paths have a span of their own, a summary.
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

#include "memory/unfilled.hpp"
#include "stage/linked_spans.hpp"
#include "stage/stage_rows.hpp"
#include "stage/unit.hpp"

namespace recfn::stage {

constexpr int64_t kLeastShare = 1000;

// A unit that is decided, or (`goes_on`) a part of it.
struct UnitToDecide {
  SpanAbove above;
  int64_t budget;            // how many spans it may have
  int64_t start_ns, end_ns;  // from when to when it goes
  uint8_t goes_on;
  uint8_t tells_itself;  // the span above it takes what was folded directly below it

  // What took less is no span of its own, unless it failed: a page of the unit shows nothing of it.
  int64_t least_ns() const { return (end_ns - start_ns) / kLeastShare; }
};

constexpr uint32_t kNoTrace = UINT32_MAX;

// A trace that something is linked in.
struct TraceRow {
  uint64_t high, low;
};

// Where a row's link leads: a span id, 0 for none, and its place among the traces.
struct LinkRow {
  uint64_t span_id;
  uint32_t trace;
};

struct KeptRow {
  uint64_t parent;  // the event id of the range that its span is a child of; 0: of the span above its unit
  LinkRow link;
  int64_t row, folded;  // its number; how many ranges were folded into it
  uint32_t unit;        // its place among those that were decided together, as in what follows
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

// A span for the ranges of a path.
struct SummaryRow {
  uint64_t span_id, parent_id, first_id;
  int64_t count, total_ns, shortest_ns, longest_ns, start_ns, end_ns;
  int64_t sums;        // which it tells; -1: none
  int64_t counts_end;  // where its histogram ends; it begins where that of the one before ends
  uint32_t unit, name, digits;
};

struct Summaries {
  UnfilledVector<SummaryRow> rows;
  UnfilledVector<int64_t> counts;  // how many durations have so many binary digits, summary after summary

  void append(const Summaries& others);
};

// Units that were decided together.
struct Decided {
  UnfilledVector<KeptRow> kept;
  UnfilledVector<SumsRow> sums;
  UnfilledVector<TopRow> top;
  Summaries summaries;  // those that tell some sums
  Summaries further;
  std::vector<TraceRow> traces;
};

// Tells one unit after the other. `key`: of span ids.
class UnitTeller {
 public:
  UnitTeller(uint64_t key, TellingSpans& telling, Decided& decided) : key_(key), telling_(telling), decided_(decided) {}

  // A unit that has decided, which is the one at `place`.
  void tell(const Unit& unit, const UnitToDecide& wanted, uint32_t place);

 private:
  static constexpr int64_t kNone = -1;
  static constexpr size_t kTopNames = 3;
  static constexpr uint32_t kNoName = UINT32_MAX;

  // A path, after the one that it lies in; of several in one the one with the most time first.
  struct Place {
    const Path* path;
    int64_t holder;   // which of the unit's kept ranges it was folded into, or none
    int64_t above;    // the place that it lies in, or none
    int64_t summary;  // its own, or none
  };
  struct Extent {
    uint64_t span_id;
    int64_t start_ns, end_ns;
  };
  struct Name {
    uint32_t name;
    size_t first;  // of its places
    int64_t count, self_ns;
  };

  void tell_tree(const FoldedTree& tree, int64_t holder);
  void place_all(const FoldedTree& tree, int64_t holder);
  void place_below(const Path& path, int64_t holder, int64_t above);
  size_t sum_up(size_t first, int64_t holder);
  void clear_names(size_t paths);
  Name& name_of(uint32_t name, size_t place);
  void tell_names();
  void choose_further();
  void summarize(Place& place, int64_t sums, Summaries& told);
  Extent extent_around(const Place& place) const;
  void note_telling();
  void note_telling(const FoldedTree& tree, uint64_t span_id);

  const uint64_t key_;
  TellingSpans& telling_;
  Decided& decided_;
  std::vector<Name> names_;           // of one tree
  std::vector<uint32_t> name_slots_;  // where each stands there: a hash table

  // Of the unit that is told.
  const Unit* unit_ = nullptr;
  const UnitToDecide* wanted_ = nullptr;
  uint32_t number_ = 0;
  size_t first_kept_ = 0;        // of its ranges, in `decided_`
  std::vector<uint32_t> kept_;   // its places of these
  std::vector<Place> places_;    // of its paths
  std::vector<Place> waiting_;   // to be placed, the next one last
  std::vector<Extent> extents_;  // of its summaries
  uint64_t teller_ = 0;          // the span that tells of what was folded directly into it
  int64_t left_ = 0;             // of its budget
};

}  // namespace recfn::stage
