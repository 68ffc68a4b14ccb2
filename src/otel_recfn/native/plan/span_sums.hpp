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

struct SpanSums {
  std::vector<int64_t> rows, first_ns, last_ns, outermost, failed;
  std::vector<uint32_t> name;  // each once, in ascending order

  explicit SpanSums(size_t count) : rows(count), first_ns(count, INT64_MAX), last_ns(count), outermost(count), failed(count) {}

  // Rows of a plan, and the span above each; names that they index. False where one of them isn't there.
  bool add(const RowsToSum& from, const ColumnView<int64_t>& row, const ColumnView<int64_t>& above, size_t names) {
    std::vector<uint8_t> named(names);
    const auto of_batch = static_cast<uint64_t>(from.parent.size());
    for (Py_ssize_t at = 0; at < row.size(); ++at) {
      const auto one = static_cast<Py_ssize_t>(row[at]);
      const auto of = static_cast<size_t>(above[at]);
      if (static_cast<uint64_t>(one) >= of_batch || of >= rows.size() || from.name[one] >= names) return false;
      if (std::exchange(named[from.name[one]], uint8_t{1}) == 0) name.push_back(from.name[one]);
      ++rows[of];
      first_ns[of] = std::min(first_ns[of], from.start_ns[one]), last_ns[of] = std::max(last_ns[of], from.end_ns[one]);
      outermost[of] += from.parent[one] == 0 ? 1 : 0, failed[of] += (from.flags[one] & kError) != 0 ? 1 : 0;
    }
    std::sort(name.begin(), name.end());
    return true;
  }
};

}  // namespace recfn
