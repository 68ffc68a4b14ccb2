// `ForwardRanges` for Python: what a file's backward ranges may belong to. What takes long is done without the GIL.
#include <algorithm>
#include <cstdint>
#include <new>

#include "columns/column.hpp"
#include "columns/column_view.hpp"
#include "cpython/python.hpp"
#include "stage/forward_ranges.hpp"
#include "stage/stage_rows.hpp"

namespace recfn {
namespace {

constexpr Py_ssize_t kManyLinkRows = 10'000;  // which take some 0.1 ms

using FileRanges = stage::ForwardRanges<uint64_t>;  // with the number of what they are shown in

struct ForwardRangesObject {
  PyObject_HEAD
  bool in_use;  // read and written with the GIL
  FileRanges ranges;
};

FileRanges& ranges_of(PyObject* self) { return reinterpret_cast<ForwardRangesObject*>(self)->ranges; }

PyObject* ranges_new(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  static const char* names[] = {"most", "most_matched", nullptr};
  Py_ssize_t most = FileRanges::kMost, most_matched = FileRanges::kMostMatched;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "|nn:ForwardRanges", const_cast<char**>(names), &most, &most_matched)) {
    return nullptr;
  }
  PyObject* self = type->tp_alloc(type, 0);
  if (self != nullptr) new (&ranges_of(self)) FileRanges(static_cast<size_t>(most), static_cast<size_t>(most_matched));
  return self;
}

void ranges_dealloc(PyObject* self) {
  ranges_of(self).~FileRanges();
  Py_TYPE(self)->tp_free(self);
}

// Backward rows, with what is known of their forward ranges: columns.
struct Links {
  UnfilledVector<int64_t> row;
  UnfilledVector<uint64_t> event_id;
  UnfilledVector<int64_t> start_ns;
  UnfilledVector<uint64_t> shown_in;

  void find(FileRanges& ranges, const stage::BatchRows& rows, const ColumnView<uint64_t>& threads,
            const ColumnView<uint64_t>& numbers) {
    const auto row_at = [](size_t at) { return static_cast<Py_ssize_t>(at); };
    const auto number = [&](size_t at) { return numbers[rows.thread[static_cast<Py_ssize_t>(at)]]; };
    ranges.link(rows, threads, static_cast<size_t>(rows.size()), row_at, number, [this](size_t at, const auto& forward) {
      row.push_back(static_cast<int64_t>(at)), event_id.push_back(forward.event_id);
      start_ns.push_back(forward.start_ns), shown_in.push_back(forward.of);
    });
  }
};

PyObject* ranges_link(PyObject* self, PyObject* arguments) {
  PyObject *batch, *threads_given, *numbers_given;
  if (!PyArg_ParseTuple(arguments, "OOO:link", &batch, &threads_given, &numbers_given)) return nullptr;
  return guarded([&]() -> PyObject* {
    stage::BatchRows rows;
    ColumnView<uint64_t> threads, numbers;
    Links links;
    const bool taken = rows.take(batch) && threads.take(threads_given, "threads", nullptr) &&
                       numbers.take(numbers_given, "numbers", nullptr) &&
                       rows.have_tracks(std::min(threads.size(), numbers.size()));
    const OneUser user(reinterpret_cast<ForwardRangesObject*>(self)->in_use, "ForwardRanges");
    if (!taken || !user) return nullptr;
    const bool done = without_gil_if(rows.size() > kManyLinkRows, [&] { links.find(ranges_of(self), rows, threads, numbers); });
    return done ? column_tuple(links.row, links.event_id, links.start_ns, links.shown_in) : nullptr;
  });
}

Py_ssize_t ranges_length(PyObject* self) { return static_cast<Py_ssize_t>(ranges_of(self).size()); }

PyMethodDef links_methods[] = {
    {"link", ranges_link, METH_VARARGS, "link(batch, threads, numbers) -> backward rows, with their forward ranges."},
    {nullptr, nullptr, 0, nullptr}};

PySequenceMethods links_as_sequence = {ranges_length};

PyTypeObject links_type() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "otel_recfn._native.ForwardRanges";
  type.tp_basicsize = sizeof(ForwardRangesObject);
  type.tp_new = ranges_new;
  type.tp_dealloc = ranges_dealloc;
  type.tp_methods = links_methods;
  type.tp_as_sequence = &links_as_sequence;
  type.tp_flags = Py_TPFLAGS_DEFAULT;
  type.tp_doc = "ForwardRanges(most, most_matched): those that backward ranges may belong to. See Python's `batches/links.py`.";
  return type;
}

PyTypeObject LinksType = links_type();

}  // namespace

int add_links_type(PyObject* module) { return PyModule_AddType(module, &LinksType); }

}  // namespace recfn
