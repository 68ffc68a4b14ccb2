// The durations of a batch: which series each row belongs to, and the sums that it is added to.
#pragma once
#include "columns/column_view.hpp"
#include "cpython/python.hpp"
#include "metrics/duration_buckets.hpp"
#include "model/events.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace recfn {

// Instead of a series' number.
enum NoSeries : int32_t { kNoSeries = -1, kUnknownSeries = -2 };

// Which series rows belong to.
struct SeriesOfRows {
  ColumnView<uint8_t> kind, scope;
  ColumnView<uint32_t> name, flags;

  bool take(PyObject* batch, Py_ssize_t rows) {
    return kind.take(batch, "kind") && scope.take(batch, "scope") && name.take(batch, "name") && flags.take(batch, "flags") &&
           equally_long({rows, kind.size(), scope.size(), name.size(), flags.size()});
  }

  // Finds each row's number in the table of names and scopes. Keys that it doesn't have are added to `unknown`.
  void find(const int32_t* slots, size_t slot_count, int32_t* numbers, std::vector<uint64_t>& unknown) const {
    for (Py_ssize_t row = 0, rows = kind.size(); row < rows; ++row) {
      const uint64_t key = static_cast<uint64_t>(name[row]) * kNumScopes + scope[row];
      const int32_t number = key < slot_count && slots[key] >= 0 ? slots[key] : static_cast<int32_t>(kUnknownSeries);
      numbers[row] = kind[row] != kRangeEvent || (flags[row] & kPartial) != 0 ? static_cast<int32_t>(kNoSeries) : number;
      if (numbers[row] == kUnknownSeries) unknown.push_back(key);
    }
  }
};

// How long rows took.
struct DurationsOfRows {
  ColumnView<int64_t> start_ns, end_ns;

  bool take(PyObject* batch, Py_ssize_t rows) {
    return start_ns.take(batch, "start_ns") && end_ns.take(batch, "end_ns") &&
           equally_long({rows, start_ns.size(), end_ns.size()});
  }

  int64_t operator[](Py_ssize_t row) const { return std::max<int64_t>(0, end_ns[row] - start_ns[row]); }
};

// Added to without the GIL, and without memory of its own.
struct DurationSums {
  enum Of { kCount, kTotal, kLeast, kMost, kLast, kZeros, kFields = 8 };  // of a series, in nanoseconds

  int64_t* series;
  size_t series_count;
  std::vector<BoundBuckets> bounded;
  std::vector<PowerBuckets> powers;

  // The series of each row is known, or it has none.
  void add(const int32_t* numbers, Py_ssize_t rows, const DurationsOfRows& durations) {
    for (Py_ssize_t row = 0; row < rows; ++row) {
      const int32_t number = numbers[row];
      if (number >= 0 && static_cast<size_t>(number) < series_count) add_to(static_cast<size_t>(number), durations[row]);
    }
  }

 private:
  void add_to(size_t number, int64_t ns) {
    int64_t* sums = series + number * kFields;
    sums[kLeast] = sums[kCount] == 0 ? ns : std::min(sums[kLeast], ns);
    sums[kMost] = std::max(sums[kMost], ns);
    ++sums[kCount];
    sums[kTotal] += ns;
    sums[kLast] = ns;
    sums[kZeros] += ns == 0;
    for (auto& buckets : bounded) buckets.add(number, ns);
    for (auto& buckets : powers) buckets.add(number, ns);
  }
};

}  // namespace recfn
