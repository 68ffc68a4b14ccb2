// Python's side of planning: columns in, columns out, without the GIL in between.
#include "plan/plan_bindings.hpp"

#include <utility>
#include <vector>

#include "columns/column_tuple.hpp"
#include "cpython/gil.hpp"
#include "cpython/guarded.hpp"
#include "plan/binding_checks.hpp"
#include "plan/span_rows.hpp"
#include "plan/span_sums.hpp"

namespace {

using recfn::Above;
using recfn::column_tuple;
using recfn::ColumnView;
using recfn::guarded;
using recfn::is_known;
using recfn::is_long;
using recfn::KnownContexts;
using recfn::new_column;
using recfn::PlannedRows;
using recfn::RowsToPlan;
using recfn::RowsToSum;
using recfn::SpanSum;
using recfn::SpanSums;
using recfn::Wanted;
using recfn::without_gil_if;

bool is_as_long(const RowsToPlan& rows, const ColumnView<uint8_t>& fates) {
  if (fates.size() == rows.size()) return true;
  PyErr_SetString(PyExc_ValueError, "as many fates as rows are needed");
  return false;
}

template <typename T>
bool take(ColumnView<T>& column, PyObject* given, const char* name) {
  return column.take(given, name, nullptr);
}

PyObject* plan_fates(PyObject*, PyObject* arguments) {
  PyObject *batch, *fate, *of_step;
  if (!PyArg_ParseTuple(arguments, "OOO:plan_fates", &batch, &fate, &of_step)) return nullptr;
  return guarded([&]() -> PyObject* {
    RowsToPlan rows;
    KnownContexts contexts;
    if (!rows.take(batch) || !take(contexts.fate, fate, "fate") || !take(contexts.of_step, of_step, "of_step")) return nullptr;
    recfn::UnfilledVector<uint8_t> fates;
    bool known = contexts.of_step.size() == contexts.fate.size();
    const bool done = without_gil_if(is_long(rows.size()), [&] {
      fates.resize(static_cast<size_t>(rows.size()));
      known = known && find_fates(rows, contexts, fates.data());
    });
    return done && is_known(known) ? new_column(std::move(fates)) : nullptr;
  });
}

PyObject* plan_wanted(PyObject*, PyObject* arguments) {
  PyObject *batch, *given;
  Py_ssize_t contexts;
  if (!PyArg_ParseTuple(arguments, "OOn:plan_wanted", &batch, &given, &contexts)) return nullptr;
  return guarded([&]() -> PyObject* {
    RowsToPlan rows;
    ColumnView<uint8_t> fates;
    if (!rows.take(batch) || !take(fates, given, "fates") || !is_as_long(rows, fates)) return nullptr;
    Wanted wanted;
    bool known = contexts >= 0;
    const bool done = without_gil_if(is_long(rows.size()), [&] {
      known = known && wanted.find(rows, fates, static_cast<size_t>(contexts));
    });
    return done && is_known(known) ? column_tuple(wanted.contexts, wanted.roots) : nullptr;
  });
}

PyObject* plan_rows(PyObject*, PyObject* arguments) {
  PyObject *batch, *given, *of_step, *of_context, *roots, *of_root, *order;
  if (!PyArg_ParseTuple(arguments, "OOOOOOO:plan_rows", &batch, &given, &of_step, &of_context, &roots, &of_root, &order)) {
    return nullptr;
  }
  return guarded([&]() -> PyObject* {
    RowsToPlan rows;
    ColumnView<uint8_t> fates, steps;
    ColumnView<int64_t> places;
    Above above;
    if (!rows.take(batch) || !take(fates, given, "fates") || !is_as_long(rows, fates) || !take(steps, of_step, "of_step") ||
        !take(above.of_context, of_context, "of_context") || !take(above.roots, roots, "roots") ||
        !take(above.of_root, of_root, "of_root") || (order != Py_None && !take(places, order, "order"))) {
      return nullptr;
    }
    PlannedRows planned;
    bool known = above.of_root.size() == above.roots.size();
    const bool done = without_gil_if(is_long(rows.size()), [&] {
      known = known && planned.plan(rows, fates, steps, above, order == Py_None ? nullptr : &places);
    });
    return done && is_known(known) ? column_tuple(planned.fate, planned.row, planned.parent, planned.above) : nullptr;
  });
}

PyObject* plan_sums(PyObject*, PyObject* arguments) {
  PyObject *batch, *row, *above;
  Py_ssize_t count, names;
  if (!PyArg_ParseTuple(arguments, "OOOnn:plan_sums", &batch, &row, &above, &count, &names)) return nullptr;
  return guarded([&]() -> PyObject* {
    RowsToSum rows;
    ColumnView<int64_t> places, spans;
    if (!rows.take(batch) || !take(places, row, "row") || !take(spans, above, "above")) return nullptr;
    bool known = count >= 0 && names >= 0 && places.size() == spans.size();
    SpanSums sums(known ? static_cast<size_t>(count) : 0);
    const bool done = without_gil_if(is_long(places.size()), [&] {
      known = known && sums.add(rows, places, spans, static_cast<size_t>(names));
    });
    if (!done || !is_known(known)) return nullptr;
    std::vector<int64_t> of_spans[] = {sums.column(&SpanSum::rows), sums.column(&SpanSum::first_ns),
                                       sums.column(&SpanSum::last_ns), sums.column(&SpanSum::outermost),
                                       sums.column(&SpanSum::failed)};
    return column_tuple(of_spans[0], of_spans[1], of_spans[2], of_spans[3], of_spans[4], sums.name);
  });
}

PyMethodDef methods[] = {
    {"plan_fates", plan_fates, METH_VARARGS, "plan_fates(batch, fate, of_step) -> what becomes of each row."},
    {"plan_wanted", plan_wanted, METH_VARARGS, "plan_wanted(batch, fates, contexts) -> contexts and outermost ranges in use."},
    {"plan_rows", plan_rows, METH_VARARGS,
     "plan_rows(batch, fates, of_step, of_context, roots, of_root, order) -> fate of all rows; row, parent and above of spans."},
    {"plan_sums", plan_sums, METH_VARARGS,
     "plan_sums(batch, row, above, count, names) -> rows, first_ns, last_ns, outermost and failed of each span above; names."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int recfn::add_plan(PyObject* module) { return PyModule_AddFunctions(module, methods); }
