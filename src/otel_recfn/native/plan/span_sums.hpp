// What the rows of a plan tell together, and those of each span above.
#pragma once
#include "columns/column_view.hpp"
#include "columns/equally_long.hpp"
#include "cpython/python.hpp"
#include "model/events.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace recfn {

struct RowsToSum {
  ColumnView<int64_t> start_ns, end_ns;
  ColumnView<uint64_t> parent;
  ColumnView<uint32_t> flags, name;

  bool take(PyObject* batch) {
    return start_ns.take(batch, "start_ns") && end_ns.take(batch, "end_ns") && parent.take(batch, "parent") &&
           flags.take(batch, "flags") && name.take(batch, "name") &&
           equally_long({start_ns.size(), end_ns.size(), parent.size(), flags.size(), name.size()});
  }
};

// Of the rows below one span.
struct SpanSum {
  int64_t rows = 0, first_ns = INT64_MAX, last_ns = 0, outermost = 0, failed = 0;
};

struct SpanSums {
  std::vector<SpanSum> spans;
  std::vector<uint32_t> name;  // each once, in ascending order

  explicit SpanSums(size_t count) : spans(count) {}

  // Rows of a plan, and the span above each; names that they index. False where one of them isn't there.
  bool add(const RowsToSum& from, const ColumnView<int64_t>& row, const ColumnView<int64_t>& above, size_t names) {
    std::vector<uint8_t> named(names);
    const auto of_batch = static_cast<uint64_t>(from.parent.size());
    for (Py_ssize_t at = 0; at < row.size(); ++at) {
      const auto one = static_cast<Py_ssize_t>(row[at]);
      const auto of = static_cast<size_t>(above[at]);
      if (static_cast<uint64_t>(one) >= of_batch || of >= spans.size() || from.name[one] >= names) return false;
      if (std::exchange(named[from.name[one]], uint8_t{1}) == 0) name.push_back(from.name[one]);
      SpanSum& sum = spans[of];
      ++sum.rows;
      sum.first_ns = std::min(sum.first_ns, from.start_ns[one]), sum.last_ns = std::max(sum.last_ns, from.end_ns[one]);
      sum.outermost += from.parent[one] == 0 ? 1 : 0, sum.failed += (from.flags[one] & kError) != 0 ? 1 : 0;
    }
    std::sort(name.begin(), name.end());
    return true;
  }

  std::vector<int64_t> column(int64_t SpanSum::*of) const {
    std::vector<int64_t> values;
    values.reserve(spans.size());
    for (const SpanSum& sum : spans) values.push_back(sum.*of);
    return values;
  }
};

}  // namespace recfn
