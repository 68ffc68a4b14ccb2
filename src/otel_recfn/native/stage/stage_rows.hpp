// What a stage reads: the columns of a batch, and what Python knows of its contexts, outermost
// ranges and threads.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "columns/column_view.hpp"
#include "columns/fields.hpp"
#include "cpython/python.hpp"
#include "model/events.hpp"
#include "stage/names.hpp"

namespace recfn::stage {

// What becomes of a row, as Python's `Outcome`. From `kInSpan` on: a span.
enum Outcome : uint8_t {
  kOtherKind = 0,
  kSuppressed = 1,
  kUnsampled = 2,
  kInSpan = 3,
  kRootless = 4
};
constexpr size_t kOutcomes = 5;

// The span that outermost ranges are children of. A unit is what lies below one.
struct ParentSpan {
  uint64_t trace_high, trace_low, span_id;

  bool operator==(const ParentSpan& other) const {
    return span_id == other.span_id && trace_low == other.trace_low &&
           trace_high == other.trace_high;
  }
};

// A context of a batch: the span that was current, and what becomes of ranges in it.
struct ContextRow {
  uint64_t trace_high, trace_low, span_id;
  uint8_t outcome;
  bool is_step;  // the span is that of a step

  ParentSpan parent_span() const { return {trace_high, trace_low, span_id}; }
};

constexpr auto fields_of(const ContextRow*) {
  return std::array{RECFN_FIELD(ContextRow, trace_high), RECFN_FIELD(ContextRow, trace_low),
                    RECFN_FIELD(ContextRow, span_id), RECFN_FIELD(ContextRow, outcome),
                    RECFN_FIELD(ContextRow, is_step)};
}

// A root of ours: above the outermost ranges without a span around them that have event ids from
// `first` on, up to before `until`. A table has them in ascending order, and none overlap.
struct RootRow {
  uint64_t first, until;
  uint64_t trace_high, trace_low, span_id;

  ParentSpan parent_span() const { return {trace_high, trace_low, span_id}; }
};

constexpr auto fields_of(const RootRow*) {
  return std::array{RECFN_FIELD(RootRow, first), RECFN_FIELD(RootRow, until),
                    RECFN_FIELD(RootRow, trace_high), RECFN_FIELD(RootRow, trace_low),
                    RECFN_FIELD(RootRow, span_id)};
}

// What a batch's rows index, as Python knows it.
struct BatchTables {
  TableView<const ContextRow> contexts;
  TableView<const RootRow> roots;
  std::vector<uint64_t> threads;  // RecordFunction's ids, by track
  const Names* names = nullptr;   // those of the batch were numbered last

  // How a range is added up and shown. Its name and its module's path are the batch's.
  struct Called {
    uint32_t name, display_name, module, modules;
  };
  Called called(uint32_t name_in_batch, uint32_t module_in_batch, uint8_t source) const {
    const uint32_t name = names->number(name_in_batch);
    if (source == kTorchSource) return {name, names->display_name(name), 0, 0};
    if (source != kModuleSource) return {name, name, 0, 0};
    const uint32_t kind = names->display_name(name);
    const uint32_t module = module_in_batch == 0 ? 0 : names->number(module_in_batch);
    return {kind, kind, module, module == 0 ? 0 : names->without_numbers(module)};
  }

  // The root above an outermost range; null if there is none.
  const RootRow* root(uint64_t event_id) const {
    const auto is_before = [](uint64_t id, const RootRow& one) { return id < one.first; };
    const RootRow* const next = std::upper_bound(roots.begin(), roots.end(), event_id, is_before);
    if (next == roots.begin()) return nullptr;
    const RootRow* const last = next - 1;
    return event_id < last->until ? last : nullptr;
  }
};

struct BatchRows {
  ColumnView<uint64_t> event_id, parent, root, forward_thread_id;
  ColumnView<int64_t> start_ns, end_ns, sequence_nr, cpu_time_ns;
  ColumnView<uint32_t> name, thread, context, flags, module;
  ColumnView<uint8_t> kind, scope, source;

  bool take(PyObject* batch) {
    return event_id.take(batch, "event_id") && parent.take(batch, "parent") &&
           root.take(batch, "root") && forward_thread_id.take(batch, "forward_thread_id") &&
           start_ns.take(batch, "start_ns") && end_ns.take(batch, "end_ns") &&
           sequence_nr.take(batch, "sequence_nr") && cpu_time_ns.take(batch, "cpu_time_ns") &&
           name.take(batch, "name") && thread.take(batch, "thread") &&
           context.take(batch, "context") && flags.take(batch, "flags") &&
           module.take(batch, "module") && kind.take(batch, "kind") && scope.take(batch, "scope") &&
           source.take(batch, "source") &&
           equally_long({event_id.size(), parent.size(), root.size(), forward_thread_id.size(),
                         start_ns.size(), end_ns.size(), sequence_nr.size(), cpu_time_ns.size(),
                         name.size(), thread.size(), context.size(), flags.size(), module.size(),
                         kind.size(), scope.size(), source.size()});
  }

  Py_ssize_t size() const { return event_id.size(); }

  // Whether it lies directly in a span, which may lie in a range.
  bool is_outermost(Py_ssize_t row) const { return root[row] == event_id[row]; }
  // The range around it in the same span; 0 if there is none.
  uint64_t parent_in_span(Py_ssize_t row) const { return is_outermost(row) ? 0 : parent[row]; }
  bool is_operator(Py_ssize_t row) const {
    return source[row] == kTorchSource && scope[row] == kFunctionScope;
  }
  bool in_backward(Py_ssize_t row) const { return scope[row] == kBackwardFunctionScope; }
  // What a link leads to, and from.
  bool is_forward(Py_ssize_t row) const {
    return has_sequence(row) && !in_backward(row) && forward_thread_id[row] == 0;
  }
  bool is_backward(Py_ssize_t row) const {
    return has_sequence(row) && in_backward(row) && forward_thread_id[row] != 0;
  }

 private:
  bool has_sequence(Py_ssize_t row) const {
    const int64_t number = sequence_nr[row];
    return number >= 0 && number >> kOrdinalBits == 0 && kind[row] == kRangeRow;
  }
};

// The outermost ranges that a batch announces.
struct OpenedRows {
  ColumnView<uint8_t> source;
  ColumnView<uint64_t> event_id;
  ColumnView<int64_t> start_ns;
  ColumnView<uint32_t> context, flags;

  // `opened`: a batch's, which has a dict of columns.
  bool take(PyObject* opened) {
    const Reference columns(PyObject_GetAttrString(opened, "columns"));
    return columns && take(columns.get(), "source", source) &&
           take(columns.get(), "event_id", event_id) && take(columns.get(), "start_ns", start_ns) &&
           take(columns.get(), "context", context) && take(columns.get(), "flags", flags) &&
           equally_long(
               {source.size(), event_id.size(), start_ns.size(), context.size(), flags.size()});
  }

  Py_ssize_t size() const { return source.size(); }

 private:
  template <typename T>
  static bool take(PyObject* columns, const char* name, ColumnView<T>& column) {
    const Reference array(PyMapping_GetItemString(columns, name));
    return array && column.take_array(array.get(), name);
  }
};

// Whether all that so many rows index is there; an IndexError is set where it isn't.
template <typename Knows>
bool all_known(Py_ssize_t rows, Knows knows) {
  Py_ssize_t row = 0;
  while (row < rows && knows(row)) ++row;
  if (row < rows) {
    PyErr_SetString(PyExc_IndexError,
                    "a row indexes nothing; its context, thread and name have to be known");
  }
  return row == rows;
}

// A batch that is added, as Python gives it.
struct ToAdd {
  BatchRows rows;
  OpenedRows opened_rows;
  BatchTables known;
  bool in_order = false;  // the rows are to be taken in the order in which they stand
  int64_t drained_ns = 0;

  // Reads a batch whose names are numbered already. False with an error set.
  bool take(PyObject* batch, PyObject* contexts, PyObject* roots, const Names& names) {
    const Reference opened(PyObject_GetAttrString(batch, "opened"));
    const Reference tracks(PyObject_GetAttrString(batch, "tracks"));
    const Reference closed(PyObject_GetAttrString(batch, "closed"));
    const Reference drained(PyObject_GetAttrString(batch, "drained_ns"));
    known.names = &names;
    if (!opened || !tracks || !closed || !drained || !rows.take(batch) ||
        !opened_rows.take(opened.get())) {
      return false;
    }
    if (!known.contexts.take(contexts, "contexts") || !known.roots.take(roots, "roots")) {
      return false;
    }
    in_order = PyLong_AsSsize_t(closed.get()) < rows.size();
    drained_ns = PyLong_AsLongLong(drained.get());
    return PyErr_Occurred() == nullptr && take_threads(tracks.get()) && all_is_known();
  }

 private:
  bool take_threads(PyObject* tracks) {
    const Py_ssize_t size = PySequence_Size(tracks);
    for (Py_ssize_t index = 0; index < size; ++index) {
      const Reference track(PySequence_GetItem(tracks, index));
      const Reference thread_id(track ? PyObject_GetAttrString(track.get(), "thread_id") : nullptr);
      if (!thread_id) return false;
      known.threads.push_back(PyLong_AsUnsignedLongLong(thread_id.get()));
    }
    return PyErr_Occurred() == nullptr;
  }

  bool all_is_known() const {
    const size_t contexts = known.contexts.size();
    const size_t threads = known.threads.size();
    const size_t names = known.names->listed();
    const auto knows = [&](Py_ssize_t row) {
      return rows.context[row] < contexts && rows.thread[row] < threads && rows.name[row] < names &&
             rows.module[row] < names;
    };
    return all_known(rows.size(), knows) && all_known(opened_rows.size(), [&](Py_ssize_t i) {
             return opened_rows.context[i] < contexts;
           });
  }
};

}  // namespace recfn::stage
