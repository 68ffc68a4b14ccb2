// Adds the durations of a batch to the sums of their series, and to counts between given bounds: in
// arrays of numpy's, in place.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "columns/column_view.hpp"
#include "cpython/python.hpp"

namespace recfn {
namespace {

// Counts of the durations between bounds: bucket n of a series counts those of at least n of them.
class BoundBuckets {
 public:
  // `min_ns` and `counts`: the bounds in ascending order, and an array with a count for each
  // bucket of each series.
  bool take(PyObject* min_ns, PyObject* counts, size_t series) {
    if (!min_ns_.take(min_ns, "min_ns") || !counts_.take(counts, "counts")) return false;
    for (const int64_t bound : min_ns_) ++below_[cell_of(bound) + 1];
    std::partial_sum(below_, below_ + kCells + 1, below_);
    const size_t needed = series * buckets();
    if (counts_.size() >= needed) return true;
    PyErr_Format(PyExc_ValueError, "counts has %zu numbers; %zu are needed for all series",
                 counts_.size(), needed);
    return false;
  }

  void add(size_t series, int64_t ns) {
    const int64_t* const bounds = min_ns_.begin();
    size_t bucket = below_[cell_of(ns)];
    while (bucket < min_ns_.size() && bounds[bucket] <= ns) ++bucket;
    ++counts_[series * buckets() + bucket];
  }

 private:
  // Durations of one cell are within a quarter of each other. So few cells have a bound, and a
  // duration rarely is compared twice.
  static constexpr size_t kCells = 248;

  static size_t cell_of(int64_t ns) {
    const uint64_t number = static_cast<uint64_t>(std::max<int64_t>(0, ns)) + 4;
    const auto shift = static_cast<unsigned>(61 - __builtin_clzll(number));
    return 4 * shift + (number >> shift & 3);
  }

  size_t buckets() const { return min_ns_.size() + 1; }

  TableView<const int64_t> min_ns_;
  TableView<int64_t> counts_;
  size_t below_[kCells + 1]{};  // how many bounds are in lower cells
};

// The durations of a batch's rows.
struct RowDurations {
  ColumnView<int64_t> start_ns, end_ns;

  bool take(PyObject* batch, Py_ssize_t rows) {
    return start_ns.take(batch, "start_ns") && end_ns.take(batch, "end_ns") &&
           equally_long({rows, start_ns.size(), end_ns.size()});
  }

  int64_t operator[](Py_ssize_t row) const {
    return std::max<int64_t>(0, end_ns[row] - start_ns[row]);
  }
};

// The sums of each series, which are added to without the GIL. The arrays are held until the end of
// the call.
class DurationSums {
 public:
  // `buckets`: a list of tuples (min_ns, counts).
  bool take(PyObject* series, PyObject* buckets) {
    if (!sums_.take(series, "series")) return false;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(buckets); ++i) {
      PyObject *min_ns, *counts;
      if (!PyArg_ParseTuple(PyList_GET_ITEM(buckets, i), "OO", &min_ns, &counts)) return false;
      if (!buckets_.emplace_back().take(min_ns, counts, size())) return false;
    }
    return true;
  }

  // The series of each row is known, or it has none.
  void add(const TableView<const int32_t>& numbers, const RowDurations& durations) {
    Py_ssize_t row = 0;
    for (const int32_t number : numbers) {
      const int64_t ns = durations[row++];
      if (number >= 0 && static_cast<size_t>(number) < size()) {
        add_to(static_cast<size_t>(number), ns);
      }
    }
  }

 private:
  enum {
    kCount,
    kTotal,
    kMinimum,
    kMaximum,
    kLast,
    kFields = 8
  };  // of a series, in nanoseconds; 64 bytes

  size_t size() const { return sums_.size() / kFields; }

  void add_to(size_t number, int64_t ns) {
    int64_t* const sums = sums_.begin() + number * kFields;
    sums[kMinimum] = sums[kCount] == 0 ? ns : std::min(sums[kMinimum], ns);
    sums[kMaximum] = std::max(sums[kMaximum], ns);
    ++sums[kCount];
    sums[kTotal] += ns;
    sums[kLast] = ns;
    for (BoundBuckets& buckets : buckets_) buckets.add(number, ns);
  }

  TableView<int64_t> sums_;
  std::vector<BoundBuckets> buckets_;
};

PyObject* add_durations(PyObject*, PyObject* arguments) {
  PyObject *batch, *numbers, *series, *buckets;
  if (!PyArg_ParseTuple(arguments, "OOOO!", &batch, &numbers, &series, &PyList_Type, &buckets)) {
    return nullptr;
  }
  return guarded([&]() -> PyObject* {
    DurationSums sums;
    TableView<const int32_t> numbered;
    RowDurations durations;
    const bool taken = numbered.take(numbers, "numbers") &&
                       durations.take(batch, static_cast<Py_ssize_t>(numbered.size())) &&
                       sums.take(series, buckets);
    if (!taken || !without_gil([&] { sums.add(numbered, durations); })) return nullptr;
    Py_RETURN_NONE;
  });
}

PyMethodDef functions[] = {{"add_durations", add_durations, METH_VARARGS,
                            "add_durations(batch, numbers, series, buckets)\n\n"
                            "Add the durations of a batch's ranges to the sums of their series, as "
                            "sinks/metrics/sums.py says."},
                           {nullptr, nullptr, 0, nullptr}};

}  // namespace

int add_metrics(PyObject* module) { return PyModule_AddFunctions(module, functions); }

}  // namespace recfn
