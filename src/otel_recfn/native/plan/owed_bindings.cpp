#include "plan/owed_bindings.hpp"

#include "columns/column.hpp"
#include "cpython/gil.hpp"
#include "cpython/guarded.hpp"
#include "plan/owed_ranges.hpp"

namespace {

constexpr Py_ssize_t kManyRowsThatCame = 10'000;  // which take less than 0.1 ms

PyObject* find_still_owed(PyObject*, PyObject* arguments) {
  PyObject *given_before, *given_around, *given_came;
  if (!PyArg_ParseTuple(arguments, "OOO:still_owed", &given_before, &given_around, &given_came)) return nullptr;
  return recfn::guarded([&]() -> PyObject* {
    recfn::ColumnView<uint64_t> before, around, came;
    if (!before.take(given_before, "before", nullptr) || !around.take(given_around, "around", nullptr) ||
        !came.take(given_came, "came", nullptr)) {
      return nullptr;
    }
    recfn::Ids owed;
    const bool done = recfn::without_gil_if(around.size() + came.size() > kManyRowsThatCame, [&] {
      recfn::IdSet there(came);
      owed = recfn::still_owed(before, around, there);
    });
    return done ? recfn::new_column(std::move(owed)) : nullptr;
  });
}

PyMethodDef owed_methods[] = {
    {"still_owed", find_still_owed, METH_VARARGS, "still_owed(before, around, came) -> event ids of ranges that haven't come."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int recfn::add_owed(PyObject* module) { return PyModule_AddFunctions(module, owed_methods); }
