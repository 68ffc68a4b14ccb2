// What the spans of rows link to. Python's `batches/rows.py` says what is what.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "columns/column_view.hpp"
#include "memory/unfilled.hpp"
#include "plan/span_rows.hpp"

namespace recfn {

// Links from rows of a batch to other ranges, which stand in a context and an outermost range of their own.
struct LinksOfRows {
  ColumnView<int64_t> row;
  ColumnView<uint64_t> event_id, root;
  ColumnView<uint32_t> context;

  bool take(PyObject* links);
  Py_ssize_t size() const { return row.size(); }

  // The contexts that are used of so many, each once and in ascending order. False where one isn't of them.
  bool find_contexts(size_t count, std::vector<uint32_t>& used) const;
  // The outermost ranges of those without a span, the same way. False where a context's fate isn't known.
  bool find_roots(const ColumnView<uint8_t>& fate_of_context, std::vector<uint64_t>& roots) const;
};

// For each row that becomes a span, the span that it links to, and where the one above that stands; 0 where it links to none.
struct LinkedRows {
  UnfilledVector<uint64_t> id;
  UnfilledVector<int64_t> above;

  // Of these rows out of so many. False where something isn't known.
  bool find(const LinksOfRows& links, const ColumnView<uint8_t>& fate_of_context, const Above& above_of,
            const ColumnView<int64_t>& row, size_t rows, uint64_t key);
};

}  // namespace recfn
