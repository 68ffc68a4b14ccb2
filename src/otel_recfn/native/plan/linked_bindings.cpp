#include "plan/linked_bindings.hpp"

#include <cstdint>
#include <utility>
#include <vector>

#include "columns/column_tuple.hpp"
#include "cpython/gil.hpp"
#include "cpython/guarded.hpp"
#include "plan/binding_checks.hpp"
#include "plan/linked_rows.hpp"

namespace {

using recfn::Above;
using recfn::ColumnView;
using recfn::guarded;
using recfn::is_known;
using recfn::is_long;
using recfn::LinkedRows;
using recfn::LinksOfRows;
using recfn::new_column;
using recfn::without_gil_if;

PyObject* linked_contexts(PyObject*, PyObject* arguments) {
  PyObject* given;
  Py_ssize_t count;
  if (!PyArg_ParseTuple(arguments, "On:linked_contexts", &given, &count)) return nullptr;
  return guarded([&]() -> PyObject* {
    LinksOfRows links;
    if (!links.take(given)) return nullptr;
    std::vector<uint32_t> used;
    bool known = count >= 0;
    const bool done = without_gil_if(is_long(links.size()), [&] {
      known = known && links.find_contexts(static_cast<size_t>(count), used);
    });
    return done && is_known(known) ? new_column(std::move(used)) : nullptr;
  });
}

PyObject* linked_roots(PyObject*, PyObject* arguments) {
  PyObject *given, *fate;
  if (!PyArg_ParseTuple(arguments, "OO:linked_roots", &given, &fate)) return nullptr;
  return guarded([&]() -> PyObject* {
    LinksOfRows links;
    ColumnView<uint8_t> fates;
    if (!links.take(given) || !fates.take(fate, "fate", nullptr)) return nullptr;
    std::vector<uint64_t> roots;
    bool known = true;
    const bool done = without_gil_if(is_long(links.size()), [&] { known = links.find_roots(fates, roots); });
    return done && is_known(known) ? new_column(std::move(roots)) : nullptr;
  });
}

PyObject* linked_rows(PyObject*, PyObject* arguments) {
  PyObject *given, *fate, *of_context, *roots, *of_root, *row;
  Py_ssize_t rows;
  unsigned long long key;
  if (!PyArg_ParseTuple(arguments, "OOOOOOnK:linked_rows", &given, &fate, &of_context, &roots, &of_root, &row, &rows, &key)) {
    return nullptr;
  }
  return guarded([&]() -> PyObject* {
    LinksOfRows links;
    ColumnView<uint8_t> fates;
    ColumnView<int64_t> places;
    Above above;
    if (!links.take(given) || !fates.take(fate, "fate", nullptr) || !places.take(row, "row", nullptr) ||
        !above.of_context.take(of_context, "of_context", nullptr) || !above.roots.take(roots, "roots", nullptr) ||
        !above.of_root.take(of_root, "of_root", nullptr)) {
      return nullptr;
    }
    LinkedRows linked;
    bool known = rows >= 0 && above.of_root.size() == above.roots.size();
    const bool done = without_gil_if(is_long(links.size() + places.size()), [&] {
      known = known && linked.find(links, fates, above, places, static_cast<size_t>(rows), key);
    });
    return done && is_known(known) ? recfn::column_tuple(linked.id, linked.above) : nullptr;
  });
}

PyMethodDef linked_methods[] = {
    {"linked_contexts", linked_contexts, METH_VARARGS, "linked_contexts(links, contexts) -> those that links are in."},
    {"linked_roots", linked_roots, METH_VARARGS, "linked_roots(links, fate) -> outermost ranges of those without a span."},
    {"linked_rows", linked_rows, METH_VARARGS,
     "linked_rows(links, fate, of_context, roots, of_root, row, rows, key) -> of each of these rows: the span that it links to, "
     "and where the one above that stands."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int recfn::add_linked(PyObject* module) { return PyModule_AddFunctions(module, linked_methods); }
