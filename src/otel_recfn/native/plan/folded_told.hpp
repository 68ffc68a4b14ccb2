// What spans say of folded ranges: sums by span, and which paths have a span. Python's `batches/fold/told.py` says what is what.
#pragma once
#include "columns/column_view.hpp"
#include "cpython/python.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace recfn {

// The columns of folded paths that are read here, mostly of one table.
struct PathsToTell {
  TableColumn<int64_t> unit, holder, above;
  TableColumn<uint32_t> name;
  TableColumn<int64_t> count, total_ns, self_ns, first_ns;

  bool take(PyObject* tuple);
  size_t size() const { return static_cast<size_t>(unit.size()); }
};

// From when to when spans go that summaries may be children of.
struct Extents {
  ColumnView<int64_t> start_ns, end_ns;

  size_t size() const { return static_cast<size_t>(start_ns.size()); }
};

struct UnitsToTell {
  Extents extents;
  ColumnView<int64_t> budget, least_ns;
  ColumnView<uint8_t> tells_itself;
};

// X(type, name), in the order in which Python has them.
#define RECFN_TOLD_COLUMNS(X)                                                                                           \
  X(int64_t, unit) X(int64_t, holder) X(int64_t, count) X(int64_t, duration_ns) X(int64_t, top_end) X(uint32_t, top_name) \
  X(int64_t, top_count) X(int64_t, top_self_ns) X(int64_t, path) X(int64_t, parent) X(int64_t, start_ns) X(int64_t, end_ns) \
  X(int64_t, sums)

struct ToldColumns {
#define RECFN_COLUMN(type, name) std::vector<type> name;
  RECFN_TOLD_COLUMNS(RECFN_COLUMN)
#undef RECFN_COLUMN
};

class FoldedTeller {
 public:
  FoldedTeller(const PathsToTell& paths, const Extents& kept, const UnitsToTell& units, size_t top_names)
      : paths_(paths), kept_(kept), units_(units), top_names_(top_names) {}

  // False where a path indexes nothing.
  bool tell();
  ToldColumns& columns() { return told_; }

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

  bool is_good(size_t path) const;
  size_t end_of_holder(size_t first) const;
  size_t sum_up(size_t first, size_t last);
  void clear_names(size_t paths);
  Name& name_of(uint32_t name, size_t path);
  void tell_names();
  void choose();
  void choose_of_unit(std::vector<Candidate>& paths, size_t budget);
  void summarize(size_t path, int64_t sums);

  static constexpr int64_t kNotShown = -1;
  static constexpr uint32_t kNoName = UINT32_MAX;

  const PathsToTell& paths_;
  const Extents& kept_;
  const UnitsToTell& units_;
  const size_t top_names_;
  ToldColumns told_;
  std::vector<int64_t> shown_;        // the summary of each path
  std::vector<Name> names_;           // of one holder
  std::vector<uint32_t> name_slots_;  // where each stands there: a hash table
  std::vector<int64_t> left_;  // of the budget of each unit
  std::vector<size_t> chosen_;
};

}  // namespace recfn
