// What a stage reads: the columns of a batch, and what Python knows of its contexts, outermost
// ranges and threads.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "columns/column_view.hpp"
#include "cpython/python.hpp"
#include "model/events.hpp"

namespace recfn::stage {

// What becomes of a row, as Python's `Fate`. From `kInSpan` on: a span.
enum Fate : uint8_t { kOtherKind = 0, kSuppressed = 1, kUnsampled = 2, kInSpan = 3, kRootless = 4 };
constexpr size_t kFates = 5;

// The span that outermost ranges are children of. A unit is what lies below one.
struct SpanAbove {
  uint64_t trace_high, trace_low, span_id;

  bool operator==(const SpanAbove& other) const {
    return span_id == other.span_id && trace_low == other.trace_low &&
           trace_high == other.trace_high;
  }
};

// Of each context of a batch. `of_step`: it is that of a step that has a span of the program's.
struct ContextRow {
  SpanAbove above;
  uint8_t fate, of_step;
};

// Of an outermost range without a span around it: the root of ours above it. A table has them in
// ascending order.
struct RootRow {
  uint64_t event_id;
  SpanAbove above;
};

// What a batch's rows index, as Python knows it.
struct Surroundings {
  TableView<const ContextRow> contexts;
  TableView<const RootRow> roots;
  ColumnView<uint64_t> threads;  // RecordFunction's ids, by track
  ColumnView<uint32_t> names;    // the stage's numbers, by the batch's
  ColumnView<uint32_t>
      shown;  // by those: what a call is called, be it a module's (the class) or a backward node's
  ColumnView<uint32_t> modules;  // by those: the path of a module, with `*` for each number

  // How a range is added up and shown. Its name and its module's path are the batch's.
  struct Called {
    uint32_t name, shown, module, modules;
  };
  Called called(uint32_t name_in_batch, uint32_t module_in_batch, uint8_t source) const {
    const auto at = [](uint32_t number) { return static_cast<Py_ssize_t>(number); };
    const uint32_t name = names[at(name_in_batch)];
    if (source == kTorchSource) return {name, shown[at(name)], 0, 0};
    if (source != kModuleSource) return {name, name, 0, 0};
    const uint32_t kind = shown[at(name)],
                   module = module_in_batch == 0 ? 0 : names[at(module_in_batch)];
    return {kind, kind, module, module == 0 ? 0 : modules[at(module)]};
  }

  // Null where it is none of them.
  const SpanAbove* root(uint64_t event_id) const {
    const auto is_before = [](const RootRow& one, uint64_t id) { return one.event_id < id; };
    const RootRow* const found = std::lower_bound(roots.begin(), roots.end(), event_id, is_before);
    return found != roots.end() && found->event_id == event_id ? &found->above : nullptr;
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

  bool is_outermost(Py_ssize_t row) const { return parent[row] == 0 && kind[row] == kRangeRow; }
  bool is_of_backward(Py_ssize_t row) const { return scope[row] == kBackwardFunctionScope; }
  // What a link leads to, and from.
  bool is_forward(Py_ssize_t row) const {
    return has_sequence(row) && !is_of_backward(row) && forward_thread_id[row] == 0;
  }
  bool is_backward(Py_ssize_t row) const {
    return has_sequence(row) && is_of_backward(row) && forward_thread_id[row] != 0;
  }

 private:
  bool has_sequence(Py_ssize_t row) const {
    const int64_t number = sequence_nr[row];
    return number >= 0 && number >> kOrdinalBits == 0 && kind[row] == kRangeRow;
  }
};

// The outermost ranges that a batch announces.
struct AnnouncedRows {
  ColumnView<uint8_t> source;
  ColumnView<uint64_t> event_id;
  ColumnView<uint32_t> context;

  bool take(PyObject* source_column, PyObject* event_ids, PyObject* contexts) {
    return source.take_array(source_column, "source") &&
           event_id.take_array(event_ids, "event_id") && context.take_array(contexts, "context") &&
           equally_long({source.size(), event_id.size(), context.size()});
  }

  Py_ssize_t size() const { return source.size(); }
};

// Whether all that so many rows index is there; an IndexError is set where it isn't.
template <typename Knows>
bool all_known(Py_ssize_t rows, Knows knows) {
  Py_ssize_t row = 0;
  while (row < rows && knows(row)) ++row;
  if (row < rows)
    PyErr_SetString(PyExc_IndexError,
                    "a row indexes nothing; its context, thread and name have to be known");
  return row == rows;
}

// A batch that is added, as Python gives it.
struct ToAdd {
  BatchRows rows;
  AnnouncedRows announced;
  Surroundings known;
  bool in_order =
      false;  // the rows stand in the order in which they ended, or are to be taken as they stand
  bool folds = false;  // the rows wait for the end of their units

  bool all_is_known() const {
    const size_t contexts = known.contexts.size();
    const auto threads = static_cast<size_t>(known.threads.size()),
               names = static_cast<size_t>(known.names.size());
    const auto knows = [&](Py_ssize_t row) {
      return rows.context[row] < contexts && rows.thread[row] < threads && rows.name[row] < names &&
             rows.module[row] < names;
    };
    const auto called = static_cast<size_t>(std::min(known.shown.size(), known.modules.size()));
    return all_known(known.names.size(), [&](Py_ssize_t at) { return known.names[at] < called; }) &&
           all_known(rows.size(), knows) && all_known(announced.size(), [&](Py_ssize_t at) {
             return announced.context[at] < contexts;
           });
  }
};

}  // namespace recfn::stage
