// Outermost ranges of a batch: those that ended in it, and those that it announces. Python's `batches/rows.py` names them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "columns/column_view.hpp"
#include "memory/unfilled.hpp"

namespace recfn {

// The columns of a batch that are read here.
struct RowsThatEnded {
  ColumnView<uint8_t> kind;
  ColumnView<uint64_t> event_id, parent;

  bool take(PyObject* batch);
  Py_ssize_t size() const { return kind.size(); }

  void find_outermost(UnfilledVector<uint64_t>& event_ids) const;
};

// Columns of what a batch announces.
struct AnnouncedRanges {
  ColumnView<uint8_t> source;
  ColumnView<uint64_t> event_id;
  ColumnView<uint32_t> context;

  Py_ssize_t size() const { return source.size(); }
};

// Without the program's steps, which are spans of the program's.
struct BegunRanges {
  UnfilledVector<uint64_t> event_id;
  std::vector<int64_t> of_context;  // how many, by context

  // False where a context is none of so many.
  bool find(const AnnouncedRanges& announced, size_t contexts);
};

// The columns of a batch that tell in which order its rows stand.
struct RowsInOrder {
  ColumnView<int64_t> end_ns;
  ColumnView<uint64_t> event_id, parent;

  bool take(PyObject* batch);
  Py_ssize_t size() const { return end_ns.size(); }

  // Whether rows stand before ones that ended earlier, and ranges lie in ones of other threads.
  bool cross() const;
};

}  // namespace recfn
