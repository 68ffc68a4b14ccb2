// One unit: keeps the longest of its ranges, and folds the others into the nearest kept one around them. Python's
// `batches/fold/unit.py` says the same at more length.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "fold/finished.hpp"
#include "fold/folded_tree.hpp"
#include "fold/known.hpp"
#include "fold/pool.hpp"
#include "fold/range.hpp"
#include "fold/rank_heap.hpp"

namespace recfn::folding {

// What all units of a fold are made of.
struct Memory {
  Trees trees;
  Pool<Known> known;
  KnownTable spare_known;  // empty, as the unit that was forgotten last left it
  RankHeap spare_heap;
};

class Unit {
 public:
  Unit(Memory& memory, int64_t budget, int64_t min_duration_ns);
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;
  ~Unit();

  // The next range that has ended: in whole, or nothing of it where memory ran out (std::bad_alloc).
  void add(const Range& one);
  int64_t rows() const { return rows_; }
  void kept(std::vector<int64_t>& rows) const;

  // Before it tells: folds what is too much. Where memory runs out nothing is lost: this can be called again.
  void decide(int64_t budget);
  size_t kept_count() const { return static_cast<size_t>(kept_count_); }
  size_t path_count() const;
  // What became of its rows, told as those of the unit at `place`. It still has them.
  void tell(int64_t place, FinishedColumns& columns);
  // What was told is forgotten; more will come.
  void begin_next_part();

 private:
  struct Ranked {
    Rank rank;
    Known* known;
  };

  void reserve(const Known* own);
  void reserve_fold(size_t paths);
  void reserve_known();
  Known* insert(uint64_t event_id);
  Known* awaited(uint64_t event_id, Known* found);
  void forget_unless_needed(Known* known);

  Awaited take_awaited(Known* own);
  uint64_t parent_of(const Range& one, Known*& around);
  Rank rank_of(const Range& one, const Rank& highest) const;
  void keep(Known& known, Known* around);
  void evict();
  FoldedTree& holder(uint64_t parent);
  void shrink(int64_t budget);

  void merge_awaited();
  std::vector<Ranked> kept_in_order() const;
  bool is_kept(uint64_t event_id);

  Memory& memory_;
  const int64_t budget_, min_duration_ns_;
  int64_t rows_ = 0, kept_count_ = 0;
  uint64_t orders_ = 0;
  FoldedTree folded_{kPathsOfAUnit};
  KnownTable known_;
  RankHeap heap_;
};

}  // namespace recfn::folding
