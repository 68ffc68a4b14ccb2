// `ForwardRanges` for Python: what backward ranges of a file or a profile belong to.
#include <algorithm>

#include "columns/column.hpp"
#include "columns/column_view.hpp"
#include "columns/fields.hpp"
#include "cpython/python.hpp"
#include "memory/unfilled.hpp"
#include "stage/forward_ranges.hpp"
#include "stage/python_object.hpp"
#include "stage/stage_rows.hpp"

namespace recfn {
namespace {

using namespace stage;

constexpr Py_ssize_t kManyLinkRows = 10'000;  // which take some 0.1 ms

// What a file's backward ranges may belong to, with what these are shown in.
using FileRanges = ForwardRanges<uint64_t>;
using ForwardRangesObject = Wrapped<FileRanges>;

RecordType links_type;

PyObject* ranges_new(PyTypeObject* type, PyObject*, PyObject*) {
  return ForwardRangesObject::make(type);
}

// Backward rows, with what is known of their forward ranges: columns.
struct Links {
  UnfilledVector<int64_t> row;
  UnfilledVector<uint64_t> event_id;
  UnfilledVector<int64_t> start_ns;
  UnfilledVector<uint64_t> display_names;

  void find(FileRanges& ranges, const BatchRows& rows, const ColumnView<uint64_t>& threads,
            const ColumnView<uint64_t>& numbers) {
    const auto row_at = [](size_t at) { return static_cast<Py_ssize_t>(at); };
    const auto number = [&](size_t at) {
      return numbers[rows.thread[static_cast<Py_ssize_t>(at)]];
    };
    ranges.link(rows, threads, static_cast<size_t>(rows.size()), row_at, number,
                [this](size_t at, const auto& forward) {
                  row.push_back(static_cast<int64_t>(at));
                  event_id.push_back(forward.event_id);
                  start_ns.push_back(forward.start_ns);
                  display_names.push_back(forward.label);
                });
  }
};

PyObject* ranges_link(PyObject* self, PyObject* arguments) {
  PyObject *batch, *thread_array, *number_array;
  if (!PyArg_ParseTuple(arguments, "OOO:link", &batch, &thread_array, &number_array)) {
    return nullptr;
  }
  return guarded([&]() -> PyObject* {
    BatchRows rows;
    ColumnView<uint64_t> threads, numbers;
    Links links;
    if (!rows.take(batch) || !threads.take_array(thread_array, "threads") ||
        !numbers.take_array(number_array, "numbers")) {
      return nullptr;
    }
    const auto tracks = static_cast<size_t>(std::min(threads.size(), numbers.size()));
    if (!all_known(rows.size(), [&](Py_ssize_t row) { return rows.thread[row] < tracks; })) {
      return nullptr;
    }
    const auto find = [&](FileRanges& ranges) { links.find(ranges, rows, threads, numbers); };
    const bool done = ForwardRangesObject::done_alone(self, rows.size() > kManyLinkRows, find);
    if (!done) return nullptr;
    return links_type.make(column(links.row), column(links.event_id), column(links.start_ns),
                           column(links.display_names));
  });
}

PyMethodDef ranges_methods[] = {
    {"link", ranges_link, METH_VARARGS,
     "link(batch, threads, numbers) -> Links: backward rows, with their forward ranges."},
    {nullptr, nullptr, 0, nullptr}};

PyTypeObject ForwardRangesType = ForwardRangesObject::type(
    "otel_recfn._native.ForwardRanges", ranges_new, ranges_methods,
    "ForwardRanges(): those that backward ranges may belong to, for `sinks/chrome/encoder.py`.");

}  // namespace

int add_links_type(PyObject* module) {
  const bool done = links_type.add_to(module, "otel_recfn._native.Links",
                                      "Backward rows, with their forward ranges.",
                                      {"row", "event_id", "start_ns", "number"});
  return done ? PyModule_AddType(module, &ForwardRangesType) : -1;
}

}  // namespace recfn
