// What folding tells of finished units, in tables. A unit's number is its place among those that were finished together.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "fold/folded_tree.hpp"
#include "memory/unfilled.hpp"

namespace recfn::folding {

struct KeptRow {
  uint64_t event_id, parent;  // the kept range that it lies in; 0 where it lies directly in the unit
  int64_t row, unit, start_ns, duration_ns;
  uint32_t flags;
};

struct PathRow {
  int64_t unit;
  int64_t holder;  // which of the kept ranges it was folded into; -1 for the unit itself
  int64_t above;   // the path that it lies in; -1 where it lies directly in the holder
  int64_t count, total_ns, self_ns, shortest_ns, longest_ns, first_ns;
  uint64_t first_id;
  int64_t counts_end;  // where its counts end; they begin where those of the path before it end
  uint32_t name;
  uint32_t digits;  // how many binary digits the durations have that the first of its counts is for
};

// A folded range that others may link to.
struct LinkableRow {
  uint64_t event_id;
  int64_t unit, holder;  // as a path's
};

// A row for each kept range, those that others lie in first; for each path, by holder, each after the one that it lies in.
class FinishedColumns {
 public:
  UnfilledVector<KeptRow> kept;
  UnfilledVector<PathRow> paths;
  UnfilledVector<int64_t> counts;  // how many durations of a path have so many binary digits, path after path
  UnfilledVector<LinkableRow> linkable;

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

}  // namespace recfn::folding
