// Python's side of the sums of durations: arrays of numpy's, which this adds to in place.
#include "columns/table_view.hpp"
#include "cpython/python.hpp"
#include "metrics/duration_sums.hpp"

#include <cstdint>
#include <deque>
#include <vector>

namespace recfn {
namespace {

bool fits(const TableView<int64_t>& array, size_t needed, const char* name) {
  if (array.size() >= needed) return true;
  PyErr_Format(PyExc_ValueError, "%s has %zu numbers; %zu are needed for all series", name, array.size(), needed);
  return false;
}

// The arrays of a call, held until its end.
class Taken {
 public:
  DurationSums sums{};

  bool take(PyObject* series) {
    if (!series_.take(series, "series")) return false;
    sums.series = series_.begin(), sums.series_count = series_.size() / DurationSums::kFields;
    return true;
  }

  // A list of tuples (least_ns, counts).
  bool take_buckets(PyObject* given) {
    for (Py_ssize_t at = 0; at < PyList_GET_SIZE(given); ++at) {
      if (!take_one(PyList_GET_ITEM(given, at))) return false;
    }
    return true;
  }

 private:
  bool take_one(PyObject* given) {
    PyObject *least_ns, *counts;
    if (!PyArg_ParseTuple(given, "OO", &least_ns, &counts)) return false;
    auto& bounds = held_.emplace_back();
    auto& counted = held_.emplace_back();
    if (!bounds.take(least_ns, "least_ns") || !counted.take(counts, "counts")) return false;
    const size_t number = bounds.size();
    sums.bounded.emplace_back(bounds.begin(), number, counted.begin());
    return fits(counted, sums.series_count * (number + 1), "counts");
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
    if (!numbered.take(numbers, "numbers") || !durations.take(batch, numbered.size()) || !taken.take(series) ||
        !taken.take_buckets(buckets)) {
      return nullptr;
    }
    if (!without_gil([&] { taken.sums.add(numbered.begin(), numbered.size(), durations); })) return nullptr;
    Py_RETURN_NONE;
  });
}

PyObject* keys_of(const std::vector<uint64_t>& keys) {
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(keys.size()));
  for (size_t at = 0; list != nullptr && at < keys.size(); ++at) {
    PyObject* key = PyLong_FromUnsignedLongLong(keys[at]);
    if (key == nullptr) {
      Py_CLEAR(list);
    } else {
      PyList_SET_ITEM(list, static_cast<Py_ssize_t>(at), key);
    }
  }
  return list;
}

PyObject* find_series(PyObject*, PyObject* arguments) {
  PyObject *batch, *slots, *numbers;
  if (!PyArg_ParseTuple(arguments, "OOO", &batch, &slots, &numbers)) return nullptr;
  return guarded([&]() -> PyObject* {
    SeriesOfRows rows;
    TableView<int32_t> known, numbered;
    if (!known.take(slots, "slots") || !numbered.take(numbers, "numbers") || !rows.take(batch, numbered.size())) return nullptr;
    std::vector<uint64_t> unknown;
    rows.find(known.begin(), known.size(), numbered.begin(), unknown);
    return keys_of(unknown);
  });
}

PyMethodDef functions[] = {
    {"add_durations", add_durations, METH_VARARGS,
     "add_durations(batch, numbers, series, buckets)\n\n"
     "Add the durations of a batch's ranges to the sums of their series, as sinks/metrics/sums.py says."},
    {"find_series", find_series, METH_VARARGS,
     "find_series(batch, slots, numbers) -> list of int\n\n"
     "Write the series of each row into numbers; name * NUM_SCOPES + scope of each range that slots has none for."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int add_metrics(PyObject* module) { return PyModule_AddFunctions(module, functions); }

}  // namespace recfn
