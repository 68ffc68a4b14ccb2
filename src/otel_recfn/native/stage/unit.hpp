// One unit: keeps the longest of its ranges, and folds the others into the nearest kept one around them. Python's
// `batches/stage.py` says how they rank; `tests/models/folding.py` does the same, to be read.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "stage/comparison.hpp"
#include "stage/folded_tree.hpp"
#include "stage/id_table.hpp"
#include "stage/pool.hpp"
#include "stage/range.hpp"

namespace recfn::stage {

struct Limits {
  int64_t budget, most_waiting;
};

// A range that is kept for now, and what was folded into it.
struct Kept {
  FoldedTree folded;
  Rank rank;
  uint64_t parent;  // a kept one, or 0
};

// What came of a range that hasn't come itself.
struct Awaited {
  Awaited* next;
  uint64_t event_id;
  FoldedTree folded;
  uint64_t order;
  bool stays;  // for its self time, when its unit's next part begins
};

// What all units are made of, and what they need while they are compared.
struct Memory {
  struct Spot {
    FoldedTree* tree;  // what it was folded into, or what was folded into it
    Path* path;        // null where it is kept
  };

  Trees trees;
  Pool<Awaited> awaited;
  Comparison comparison;
  std::vector<Spot> spots;
  std::vector<Kept> kept;         // what those that are kept become
  std::vector<Awaited*> ordered;  // of one unit, in the order in which they were first needed
  std::vector<Ranges> spare_held;  // empty, as units that were forgotten left them
  size_t spare_rows = 0;           // that they have room for

  // For as many units as mostly end at once; those of large units would keep too much.
  static constexpr size_t kMostSpare = 256, kMostSpareRows = 1 << 14, kMostSpareRowsOfAll = 1 << 18;
};

class Unit {
 public:
  Unit(Memory& memory, const Limits& limits);
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;

  // The next range that has ended.
  void add(const Range& one) {
    if (waiting_ >= limits_.most_waiting) compare(as_it_goes_on(), true);
    held_.emplace_back() = one;
    ++rows_, ++waiting_;
  }

  // The numbers of the rows that may be kept yet.
  void held(std::vector<int64_t>& rows) const;
  int64_t first_row() const { return held_.empty() ? 0 : held_.front().row; }

  // Before it is told: folds what is too much, or shorter than `least_ns`.
  void decide(int64_t budget, int64_t least_ns);
  // The places of the ranges that are kept, outermost first, and what is told of them.
  std::vector<uint32_t> outermost_first() const;
  const Range& range(uint32_t place) const { return held_[place]; }
  const Kept& kept(uint32_t place) const { return kept_[place]; }
  // What was folded into the span above the unit.
  const FoldedTree& folded() const { return folded_; }
  // What was told is forgotten; more will come.
  void begin_next_part();
  // The same, before it is forgotten itself: other units use what it was made of.
  void give_back();

 private:
  Bounds as_it_goes_on() const { return {limits_.budget, limits_.budget, 0}; }
  void compare(const Bounds& bounds, bool parents_may_come);
  Awaited* take_awaited();
  void await_parents();
  void place_kept();
  void fold_others(bool parents_may_come);
  static void take_time(const Memory::Spot& spot, const Range& around, const Range& one);
  Memory::Spot fold(const Range& one, const Memory::Spot& around, FoldedTree* into_it);
  FoldedTree& holder(uint32_t above, const Range& one, bool parents_may_come);
  void keep_held();
  Awaited& awaited(uint64_t event_id);
  void order_awaited();
  void settle();
  void note_what_stays();

  Memory& memory_;
  const Limits limits_;
  int64_t rows_ = 0, waiting_ = 0;  // how many came; how many of them were not compared yet
  uint64_t orders_ = 0;
  FoldedTree folded_{kPathsOfAUnit};
  Ranges held_;  // as they came: those that were kept when ranges were compared last, and those that wait
  std::vector<Kept> kept_;   // of the first ones
  IdTable<OfId<Awaited*>> awaited_;
};

}  // namespace recfn::stage
