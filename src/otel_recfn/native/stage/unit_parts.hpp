// What units are made of, and what all of them share.
#pragma once
#include <cstdint>
#include <vector>

#include "stage/call_paths.hpp"
#include "stage/folded_tree.hpp"
#include "stage/selected_ranges.hpp"

namespace recfn::stage {

struct Limits {
  int64_t budget;       // the ranges that a unit keeps at most
  int64_t max_waiting;  // its ranges that wait before they are compared
  int64_t max_units;    // the open units; beyond, those are decided that had no rows for longest
  int64_t max_rows;     // the rows that wait, of all units; the same
  // The rows after which a unit is decided, if the end of its span can't be seen.
  int64_t many_rows;
};

// A range that is selected for now, and what was folded into it.
struct Selected {
  FoldedTree folded;
  Rank rank;
  uint64_t parent;                     // the event id of the selected one around it, or 0
  uint32_t first_caller, last_caller;  // the operators that only call it, the innermost first
};

// A forward range without a span, which a selected backward one links to.
struct FoldedForward {
  int64_t backward_row;  // the number of the backward one's row
  const Path* path;      // what it was added up in
};

// What a unit needs while its ranges are compared. It is shared, so that a unit that ends takes no
// memory anew.
struct Memory {
  struct Target {
    FoldedTree* tree;  // what it was folded into, or what was folded into it
    Path* path;        // null if it is selected
  };

  Comparison comparison;
  CallPaths paths;
  std::vector<Target> targets;
  std::vector<Selected> selected;  // the ranges that are being selected
};

}  // namespace recfn::stage
