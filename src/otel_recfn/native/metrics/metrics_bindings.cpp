// Python's side of the sums of durations: arrays of numpy's, which this adds to in place.
#include "columns/table_view.hpp"
#include "cpython/gil.hpp"
#include "cpython/guarded.hpp"
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

  // Of a tuple (least_ns, counts).
  bool take_bounded(PyObject* given) {
    PyObject *least_ns, *counts;
    if (!PyArg_ParseTuple(given, "OO", &least_ns, &counts)) return false;
    auto& bounds = next();
    auto& counted = next();
    if (!bounds.take(least_ns, "least_ns") || !counted.take(counts, "counts")) return false;
    const size_t number = bounds.size();
    sums.bounded.emplace_back(bounds.begin(), number, counted.begin());
    return fits(counted, sums.series_count * (number + 1), "counts");
  }

  // Of a tuple (max_scale, factor, indices of short durations, max_size, ranges, counts).
  bool take_powers(PyObject* given) {
    long long max_scale, max_size;
    double factor;
    PyObject *short_ns, *ranges, *counts;
    if (!PyArg_ParseTuple(given, "LdOLOO", &max_scale, &factor, &short_ns, &max_size, &ranges, &counts)) return false;
    auto& ranged = next();
    auto& counted = next();
    auto& indices = held_indices_.emplace_back();
    if (!ranged.take(ranges, "ranges") || !counted.take(counts, "counts") || !indices.take(short_ns, "indices")) return false;
    if (max_size < 2 || max_scale > 20 || max_scale < -10) {
      PyErr_SetString(PyExc_ValueError, "exponential buckets have at least 2 of them, and a scale from -10 to 20");
      return false;
    }
    PowerBuckets::Rule rule{max_scale, factor, indices.begin(), static_cast<int64_t>(indices.size()),
                            static_cast<size_t>(max_size), 1};
    while (rule.places < rule.size) rule.places *= 2;
    sums.powers.emplace_back(rule, ranged.begin(), counted.begin());
    return fits(ranged, sums.series_count * PowerBuckets::kFields, "ranges") &&
           fits(counted, sums.series_count * rule.places, "counts");
  }

 private:
  TableView<int64_t>& next() { return held_.emplace_back(); }

  TableView<int64_t> series_;
  std::deque<TableView<int64_t>> held_;  // its elements stay where they are
  std::deque<TableView<int32_t>> held_indices_;
};

template <typename TakeOne>
bool take_each(PyObject* list, TakeOne take_one) {
  for (Py_ssize_t at = 0; at < PyList_GET_SIZE(list); ++at) {
    if (!take_one(PyList_GET_ITEM(list, at))) return false;
  }
  return true;
}

PyObject* add_durations(PyObject*, PyObject* arguments) {
  PyObject *batch, *numbers, *series, *bounded, *powers;
  if (!PyArg_ParseTuple(arguments, "OOOO!O!", &batch, &numbers, &series, &PyList_Type, &bounded, &PyList_Type, &powers)) {
    return nullptr;
  }
  return guarded([&]() -> PyObject* {
    Taken taken;
    TableView<int32_t> numbered;
    DurationsOfRows durations;
    if (!numbered.take(numbers, "numbers") || !durations.take(batch, numbered.size()) || !taken.take(series) ||
        !take_each(bounded, [&](PyObject* one) { return taken.take_bounded(one); }) ||
        !take_each(powers, [&](PyObject* one) { return taken.take_powers(one); })) {
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
     "add_durations(batch, numbers, series, bounded, powers)\n\n"
     "Add the durations of a batch's ranges to the sums of their series, as sinks/metrics/adding.py says."},
    {"find_series", find_series, METH_VARARGS,
     "find_series(batch, slots, numbers) -> list of int\n\n"
     "Write the series of each row into numbers; name * NUM_SCOPES + scope of each range that slots has none for."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int add_metrics(PyObject* module) { return PyModule_AddFunctions(module, functions); }

}  // namespace recfn
