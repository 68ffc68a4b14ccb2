// What folding tells of finished units, in tables. Python's `batches/fold/finished.py` says what their columns mean.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "fold/folded_tree.hpp"
#include "memory/unfilled.hpp"

// X(table, rows), and for each table X(type, name): a row is written at once, which costs a third of writing into columns.
#define RECFN_FINISHED_TABLES(X) \
  X(RECFN_KEPT_COLUMNS, KeptRow, kept) \
  X(RECFN_PATH_COLUMNS, PathRow, paths) \
  X(RECFN_COUNT_COLUMNS, CountRow, counts) \
  X(RECFN_LINKABLE_COLUMNS, LinkableRow, linkable)

#define RECFN_KEPT_COLUMNS(X) \
  X(uint64_t, kept) \
  X(int64_t, kept_row) \
  X(int64_t, kept_unit) \
  X(uint64_t, kept_parent) \
  X(int64_t, kept_self_ns)

#define RECFN_PATH_COLUMNS(X) \
  X(int64_t, path_unit) \
  X(int64_t, path_holder) \
  X(int64_t, path_above) \
  X(int64_t, path_count) \
  X(int64_t, path_total_ns) \
  X(int64_t, path_self_ns) \
  X(uint32_t, path_name) \
  X(uint32_t, path_digits) \
  X(int64_t, path_shortest_ns) \
  X(int64_t, path_longest_ns) \
  X(int64_t, path_first_ns) \
  X(uint64_t, path_first_id) \
  X(int64_t, path_counts_end)

#define RECFN_COUNT_COLUMNS(X) X(int64_t, counts)

#define RECFN_LINKABLE_COLUMNS(X) \
  X(uint64_t, linkable) \
  X(int64_t, linkable_unit) \
  X(int64_t, linkable_holder)

namespace recfn::folding {

#define RECFN_MEMBER(type, name) type name;
#define RECFN_ROW(columns, row, table) \
  struct row { \
    columns(RECFN_MEMBER) \
  };
RECFN_FINISHED_TABLES(RECFN_ROW)
#undef RECFN_ROW

class FinishedColumns {
 public:
#define RECFN_TABLE(columns, row, table) UnfilledVector<row> table;
  RECFN_FINISHED_TABLES(RECFN_TABLE)
#undef RECFN_TABLE

  // For a unit, and for others that mostly are like it.
  void make_room(size_t kept_rows, size_t path_rows, size_t units);
  // Every path before what lies in it; of several the one with the most time first.
  void add_tree(int64_t unit, int64_t holder, const FoldedTree& tree);

 private:
  struct Waiting {
    const Path* path;
    int64_t total_ns, above;
  };

  static bool comes_later(const Waiting& one, const Waiting& other);
  void push_below(const Path& path, int64_t above);
  void add_path(int64_t unit, int64_t holder, const Waiting& one);

  UnfilledVector<Waiting> waiting_;  // the next one last
};
#undef RECFN_MEMBER

}  // namespace recfn::folding
