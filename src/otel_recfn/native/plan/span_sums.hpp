// What the rows of each span above tell together.
#pragma once
#include "columns/column_view.hpp"
#include "columns/equally_long.hpp"
#include "cpython/python.hpp"
#include "model/events.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace recfn {

struct RowsToSum {
  ColumnView<int64_t> start_ns, end_ns;
  ColumnView<uint64_t> parent;
  ColumnView<uint32_t> flags;

  bool take(PyObject* batch) {
    return start_ns.take(batch, "start_ns") && end_ns.take(batch, "end_ns") && parent.take(batch, "parent") &&
           flags.take(batch, "flags") && equally_long({start_ns.size(), end_ns.size(), parent.size(), flags.size()});
  }
};

struct SpanSums {
  std::vector<int64_t> rows, first_ns, last_ns, outermost, failed;

  explicit SpanSums(size_t count) : rows(count), first_ns(count, INT64_MAX), last_ns(count), outermost(count), failed(count) {}

  // Rows of a plan, and the span above each. False where one of them isn't there.
  bool add(const RowsToSum& from, const ColumnView<int64_t>& row, const ColumnView<int64_t>& above) {
    for (Py_ssize_t at = 0; at < row.size(); ++at) {
      const int64_t one = row[at], of = above[at];
      if (one < 0 || one >= from.parent.size() || of < 0 || static_cast<size_t>(of) >= rows.size()) return false;
      const auto sum = static_cast<size_t>(of);
      ++rows[sum];
      first_ns[sum] = std::min(first_ns[sum], from.start_ns[one]), last_ns[sum] = std::max(last_ns[sum], from.end_ns[one]);
      outermost[sum] += from.parent[one] == 0 ? 1 : 0, failed[sum] += (from.flags[one] & kError) != 0 ? 1 : 0;
    }
    return true;
  }
};

}  // namespace recfn
