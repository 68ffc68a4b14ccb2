#include "plan/told_bindings.hpp"

#include <algorithm>

#include "columns/column_tuple.hpp"
#include "columns/equally_long.hpp"
#include "cpython/gil.hpp"
#include "cpython/guarded.hpp"
#include "plan/folded_told.hpp"

namespace {

using recfn::Extents;
using recfn::FoldedTeller;
using recfn::PathsToTell;
using recfn::ToldColumns;
using recfn::UnitsToTell;

constexpr size_t kManyPaths = 2'000;  // which take some 0.1 ms

bool take_extents(Extents& extents, PyObject* start_ns, PyObject* end_ns) {
  return extents.start_ns.take(start_ns, "start_ns", nullptr) && extents.end_ns.take(end_ns, "end_ns", nullptr) &&
         recfn::equally_long({extents.start_ns.size(), extents.end_ns.size()});
}

bool take_kept(Extents& kept, PyObject* tuple) {
  PyObject *start_ns, *end_ns;
  return PyArg_ParseTuple(tuple, "OO", &start_ns, &end_ns) && take_extents(kept, start_ns, end_ns);
}

bool take_units(UnitsToTell& units, PyObject* tuple) {
  PyObject *start_ns, *end_ns, *budget, *least_ns, *tells_itself;
  return PyArg_ParseTuple(tuple, "OOOOO", &start_ns, &end_ns, &budget, &least_ns, &tells_itself) &&
         take_extents(units.extents, start_ns, end_ns) && units.budget.take(budget, "budget", nullptr) &&
         units.least_ns.take(least_ns, "least_ns", nullptr) && units.tells_itself.take(tells_itself, "tells_itself", nullptr) &&
         recfn::equally_long({units.extents.start_ns.size(), units.budget.size(), units.least_ns.size(),
                              units.tells_itself.size()});
}

PyObject* told_columns(ToldColumns& told) {
#define RECFN_ONE(type, name) +1
  PyObject* tuple = PyTuple_New(0 RECFN_TOLD_COLUMNS(RECFN_ONE));
#undef RECFN_ONE
  Py_ssize_t place = 0;
#define RECFN_PUT(type, name) recfn::put_column(tuple, place++, told.name) &&
  if (RECFN_TOLD_COLUMNS(RECFN_PUT) true) return tuple;
#undef RECFN_PUT
  Py_XDECREF(tuple);
  return nullptr;
}

PyObject* tell_folded(PyObject*, PyObject* arguments) {
  PyObject *path_columns, *kept_columns, *unit_columns;
  Py_ssize_t top_names;
  if (!PyArg_ParseTuple(arguments, "O!O!O!n:tell_folded", &PyTuple_Type, &path_columns, &PyTuple_Type, &kept_columns,
                        &PyTuple_Type, &unit_columns, &top_names)) {
    return nullptr;
  }
  return recfn::guarded([&]() -> PyObject* {
    PathsToTell paths;
    Extents kept;
    UnitsToTell units;
    if (!paths.take(path_columns) || !take_kept(kept, kept_columns) || !take_units(units, unit_columns)) return nullptr;
    FoldedTeller teller(paths, kept, units, static_cast<size_t>(std::max<Py_ssize_t>(0, top_names)));
    bool good = top_names >= 0;
    const bool done = recfn::without_gil_if(paths.size() > kManyPaths, [&] { good = good && teller.tell(); });
    if (!done || good) return done ? told_columns(teller.columns()) : nullptr;
    PyErr_SetString(PyExc_IndexError, "a path indexes nothing; its unit, holder and path above have to be known");
    return nullptr;
  });
}

PyMethodDef functions[] = {
    {"tell_folded", tell_folded, METH_VARARGS,
     "tell_folded(paths, kept, units, top_names) -> columns of what is told of folded ranges: Python's `batches/fold/told.py`."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int recfn::add_told(PyObject* module) { return PyModule_AddFunctions(module, functions); }
