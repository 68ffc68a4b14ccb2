// Adds the durations of a batch to the sums of their series, and to counts between given bounds: in arrays of numpy's, in place.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "columns/column_view.hpp"
#include "cpython/python.hpp"

namespace recfn {
namespace {

// How many bits a duration has: durations of as many bits are within a factor of two.
size_t bits_of(int64_t ns) { return ns == 0 ? 0 : 64 - static_cast<size_t>(__builtin_clzll(static_cast<uint64_t>(ns))); }

// Bucket n of a series counts durations of at least n of the bounds.
class BoundBuckets {
 public:
  BoundBuckets(const int64_t* least_ns, size_t bounds, int64_t* counts)
      : least_ns_(least_ns, least_ns + bounds), buckets_(bounds + 1), counts_(counts) {
    for (size_t bits = 0; bits < kBits; ++bits) {
      const int64_t lowest = bits == 0 ? 0 : int64_t{1} << (bits - 1);
      const int64_t highest = bits == 0 ? 0 : lowest - 1 + lowest;
      below_[bits] = bucket_of(lowest);
      most_ = std::max(most_, bucket_of(highest) - below_[bits]);
    }
    least_ns_.resize(bounds + most_, INT64_MAX);
  }

  void add(size_t series, int64_t ns) {
    const size_t below = below_[bits_of(ns)];
    size_t bucket = below;  // the bounds between durations of as many bits are few: all are compared, without a branch
    for (size_t bound = below; bound < below + most_; ++bound) bucket += ns >= least_ns_[bound];
    ++counts_[series * buckets_ + std::min(bucket, buckets_ - 1)];
  }

 private:
  static constexpr size_t kBits = 64;  // a duration has 63 at most

  size_t bucket_of(int64_t ns) const {
    return static_cast<size_t>(std::upper_bound(least_ns_.begin(), least_ns_.end(), ns) - least_ns_.begin());
  }

  std::vector<int64_t> least_ns_;
  size_t below_[kBits];
  size_t most_ = 0;
  size_t buckets_;
  int64_t* counts_;
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
  enum Of { kCount, kTotal, kLeast, kMost, kLast, kFields = 8 };  // of a series, in nanoseconds; 64 bytes

  int64_t* series;
  size_t series_count;
  std::vector<BoundBuckets> bounded;

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
    for (auto& buckets : bounded) buckets.add(number, ns);
  }
};

// The arrays of a call, held until its end.
class Taken {
 public:
  DurationSums sums{};

  // `buckets`: a list of tuples (least_ns, counts).
  bool take(PyObject* series, PyObject* buckets) {
    if (!series_.take(series, "series")) return false;
    sums.series = series_.begin(), sums.series_count = series_.size() / DurationSums::kFields;
    Py_ssize_t at = 0;
    while (at < PyList_GET_SIZE(buckets) && take_buckets(PyList_GET_ITEM(buckets, at))) ++at;
    return at == PyList_GET_SIZE(buckets);
  }

 private:
  bool take_buckets(PyObject* given) {
    PyObject *least_ns, *counts;
    if (!PyArg_ParseTuple(given, "OO", &least_ns, &counts)) return false;
    auto& bounds = held_.emplace_back();
    auto& counted = held_.emplace_back();
    if (!bounds.take(least_ns, "least_ns") || !counted.take(counts, "counts")) return false;
    const size_t number = bounds.size();
    sums.bounded.emplace_back(bounds.begin(), number, counted.begin());
    const size_t needed = sums.series_count * (number + 1);
    if (counted.size() >= needed) return true;
    PyErr_Format(PyExc_ValueError, "counts has %zu numbers; %zu are needed for all series", counted.size(), needed);
    return false;
  }

  TableView<int64_t> series_;
  std::deque<TableView<int64_t>> held_;  // its elements stay where they are
};

PyObject* add_durations(PyObject*, PyObject* arguments) {
  PyObject *batch, *numbers, *series, *buckets;
  if (!PyArg_ParseTuple(arguments, "OOOO!", &batch, &numbers, &series, &PyList_Type, &buckets)) return nullptr;
  return guarded([&]() -> PyObject* {
    Taken taken;
    TableView<int32_t> numbered;
    DurationsOfRows durations;
    if (!numbered.take(numbers, "numbers") || !durations.take(batch, numbered.size()) || !taken.take(series, buckets)) {
      return nullptr;
    }
    if (!without_gil([&] { taken.sums.add(numbered.begin(), numbered.size(), durations); })) return nullptr;
    Py_RETURN_NONE;
  });
}

PyMethodDef functions[] = {
    {"add_durations", add_durations, METH_VARARGS,
     "add_durations(batch, numbers, series, buckets)\n\n"
     "Add the durations of a batch's ranges to the sums of their series, as sinks/metrics/sums.py says."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int add_metrics(PyObject* module) { return PyModule_AddFunctions(module, functions); }

}  // namespace recfn
