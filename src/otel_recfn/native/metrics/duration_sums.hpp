// Adds the durations of a batch to the sums of their series. Without the GIL, and without memory of its own.
#pragma once
#include "metrics/duration_buckets.hpp"
#include "metrics/duration_rows.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace recfn {

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
