#include "plan/outermost_bindings.hpp"

#include <utility>

#include "columns/column_tuple.hpp"
#include "columns/equally_long.hpp"
#include "cpython/gil.hpp"
#include "cpython/guarded.hpp"
#include "plan/binding_checks.hpp"
#include "plan/outermost.hpp"

namespace {

using recfn::AnnouncedRanges;
using recfn::BegunRanges;
using recfn::guarded;
using recfn::is_known;
using recfn::is_long;
using recfn::RowsInOrder;
using recfn::RowsThatEnded;
using recfn::without_gil_if;

PyObject* outermost_ended(PyObject*, PyObject* batch) {
  return guarded([&]() -> PyObject* {
    RowsThatEnded rows;
    if (!rows.take(batch)) return nullptr;
    recfn::UnfilledVector<uint64_t> event_ids;
    const bool done = without_gil_if(is_long(rows.size()), [&] { rows.find_outermost(event_ids); });
    return done ? recfn::new_column(std::move(event_ids)) : nullptr;
  });
}

PyObject* outermost_begun(PyObject*, PyObject* arguments) {
  PyObject *source, *event_id, *context;
  Py_ssize_t contexts;
  if (!PyArg_ParseTuple(arguments, "OOOn:outermost_begun", &source, &event_id, &context, &contexts)) return nullptr;
  return guarded([&]() -> PyObject* {
    AnnouncedRanges ranges;
    if (!ranges.source.take(source, "source", nullptr) || !ranges.event_id.take(event_id, "event_id", nullptr) ||
        !ranges.context.take(context, "context", nullptr) ||
        !recfn::equally_long({ranges.source.size(), ranges.event_id.size(), ranges.context.size()})) {
      return nullptr;
    }
    BegunRanges begun;
    bool known = contexts >= 0;
    const bool done = without_gil_if(is_long(ranges.size()), [&] {
      known = known && begun.find(ranges, static_cast<size_t>(contexts));
    });
    return done && is_known(known) ? recfn::column_tuple(begun.event_id, begun.of_context) : nullptr;
  });
}

PyObject* rows_cross(PyObject*, PyObject* batch) {
  return guarded([&]() -> PyObject* {
    RowsInOrder rows;
    if (!rows.take(batch)) return nullptr;
    bool cross = false;
    const bool done = without_gil_if(is_long(rows.size()), [&] { cross = rows.cross(); });
    return done ? PyBool_FromLong(cross) : nullptr;
  });
}

PyMethodDef outermost_methods[] = {
    {"outermost_ended", outermost_ended, METH_O, "outermost_ended(batch) -> event ids of outermost ranges among its rows."},
    {"outermost_begun", outermost_begun, METH_VARARGS,
     "outermost_begun(source, event_id, context, contexts) -> event ids of what is announced, but for steps; how many by context."},
    {"rows_cross", rows_cross, METH_O,
     "rows_cross(batch) -> whether rows stand before ones that ended earlier, and ranges lie in ones of other threads."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int recfn::add_outermost(PyObject* module) { return PyModule_AddFunctions(module, outermost_methods); }
