// `Fold`: open units behind an object of Python's. What it does, it does without the GIL.
#include "python/fold_type.hpp"

#include <algorithm>
#include <cstdint>
#include <new>
#include <unordered_set>
#include <utility>
#include <vector>

#include "columns/column.hpp"
#include "cpython/gil.hpp"
#include "cpython/made.hpp"
#include "cpython/one_user.hpp"
#include "fold/fold.hpp"
#include "python/fold_arguments.hpp"
#include "python/ranges_of_plan.hpp"

namespace recfn {
namespace {

using folding::FinishedColumns;
using folding::Fold;
using folding::ToFinish;

constexpr Py_ssize_t kManyRows = 5'000;  // which take some 0.1 ms, unless many wait to be compared
constexpr int64_t kMostWaiting = 1 << 30;  // ranges are numbered with 32 bits

struct FoldObject {
  PyObject_HEAD
  bool in_use;  // read and written with the GIL
  Fold fold;
};

class Use {
 public:
  explicit Use(PyObject* self)
      : object_(reinterpret_cast<FoldObject*>(self)), user_(object_->in_use, "Fold") {}

  explicit operator bool() const { return static_cast<bool>(user_); }
  Fold& operator*() const { return object_->fold; }
  Fold* operator->() const { return &object_->fold; }

 private:
  FoldObject* object_;
  const OneUser user_;
};

PyObject* fold_new(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  static const char* names[] = {"budget", "min_duration_ns", "most_rows", "most_waiting", nullptr};
  PyObject* given[4];
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOOO:Fold", const_cast<char**>(names), &given[0], &given[1], &given[2],
                                   &given[3])) {
    return nullptr;
  }
  int64_t values[4];
  for (int at = 0; at < 4; ++at) {
    if (!read_whole(given[at], &values[at])) return nullptr;
  }
  PyObject* self = type->tp_alloc(type, 0);
  if (self == nullptr) return nullptr;
  Fold* fold = &reinterpret_cast<FoldObject*>(self)->fold;
  new (fold) Fold({values[0], values[1], values[2], std::clamp<int64_t>(values[3], 1, kMostWaiting)});
  return self;
}

void fold_dealloc(PyObject* self) {
  reinterpret_cast<FoldObject*>(self)->fold.~Fold();
  Py_TYPE(self)->tp_free(self);
}

// How many rows it takes, up to one with which its unit is full, or before one for which there is no memory: that is an error
// where it is the first.
template <typename Rows>
Py_ssize_t take_rows(Fold& fold, const Rows& rows) {
  const Py_ssize_t count = rows.size();
  Py_ssize_t done = 0;
  try {
    while (done < count) {
      const bool full = fold.add(rows.unit_of(done), rows[done]);
      ++done;
      if (full) break;
    }
  } catch (const std::bad_alloc&) {  // of that row nothing was taken
    if (done == 0) throw;
  }
  return done;
}

// The rows are taken: where there is no memory for a number, that of `spare` is used.
PyObject* as_number(Py_ssize_t value, PyObject*& spare) {
  PyObject* number = PyLong_FromSsize_t(value);
  if (number != nullptr) return number;
  PyErr_Clear();
  Py_CLEAR(spare);
  return PyLong_FromSsize_t(value);
}

template <typename Rows>
PyObject* add_rows(PyObject* self, const Rows& rows) {
  const Use fold(self);
  const Py_ssize_t count = rows.size();
  Made all(fold ? PyLong_FromSsize_t(count) : nullptr);
  if (all.object == nullptr) return nullptr;
  Py_ssize_t done = 0;
  if (!without_gil_if(count > kManyRows, [&] { done = take_rows(*fold, rows); })) return nullptr;
  return done == count ? std::exchange(all.object, nullptr) : as_number(done, all.object);
}

PyObject* fold_add(PyObject* self, PyObject* args, PyObject* keywords) {
  static const char* names[] = {"unit", "event_id", "parent", "name", "start_ns", "duration_ns", "flags", "first_row", nullptr};
  PyObject* given[8];
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOOOOOOO:add", const_cast<char**>(names), &given[0], &given[1], &given[2],
                                   &given[3], &given[4], &given[5], &given[6], &given[7])) {
    return nullptr;
  }
  FoldRows rows;
  return rows.take(given) ? add_rows(self, rows) : nullptr;
}

PyObject* fold_add_planned(PyObject* self, PyObject* args) {
  PyObject *given, *number;
  int64_t first_row = 0;
  if (!PyArg_ParseTuple(args, "O!O:add_planned", &PyTuple_Type, &given, &number) || !read_whole(number, &first_row)) return nullptr;
  RangesOfPlan rows;
  return rows.take(given, first_row) && rows.are_known() ? add_rows(self, rows) : nullptr;
}

PyObject* fold_kept(PyObject* self, PyObject*) {
  const Use fold(self);
  std::vector<int64_t> rows;
  if (!fold || !without_gil([&] { rows = fold->kept(); })) return nullptr;
  return new_column(std::move(rows));
}

PyObject* fold_rows(PyObject* self, PyObject* argument) {
  const Items units(argument);
  const Use fold(self);
  if (!units || !fold) return nullptr;
  PyObject* rows = PyList_New(units.size());
  for (Py_ssize_t at = 0; rows != nullptr && at < units.size(); ++at) {
    uint32_t number = 0;
    PyObject* count = read_unit(units[at], &number) ? PyLong_FromLongLong(fold->rows(number)) : nullptr;
    if (count == nullptr) {
      Py_CLEAR(rows);
    } else {
      PyList_SET_ITEM(rows, at, count);
    }
  }
  return rows;
}

bool read_units(const Items& units, const Items& budgets, const Items& goes_on, std::vector<ToFinish>& read) {
  std::unordered_set<uint32_t> numbers;
  for (Py_ssize_t at = 0; at < units.size(); ++at) {
    ToFinish one{};
    const int more = PyObject_IsTrue(goes_on[at]);
    if (more < 0 || !read_unit(units[at], &one.unit) || !read_whole(budgets[at], &one.budget)) return false;
    one.goes_on = more != 0;
    if (!numbers.insert(one.unit).second) {
      PyErr_Format(PyExc_ValueError, "unit %R is named twice; finish it once at a time", units[at]);
      return false;
    }
    read.push_back(one);
  }
  return true;
}

template <typename Rows>
bool set_table(PyObject* dict, const char* name, Rows& rows) {
  const Made table(new_column(std::move(rows)));
  return table.object != nullptr && PyDict_SetItemString(dict, name, table.object) == 0;
}

PyObject* table_dict(FinishedColumns& finished) {
  PyObject* dict = PyDict_New();
  if (dict == nullptr) return nullptr;
#define RECFN_SET(columns, row, table) set_table(dict, #table, finished.table) &&
  if (RECFN_FINISHED_TABLES(RECFN_SET) true) return dict;
#undef RECFN_SET
  Py_DECREF(dict);
  return nullptr;
}

PyObject* fold_finish(PyObject* self, PyObject* args) {
  PyObject* given[3];
  if (!PyArg_ParseTuple(args, "OOO:finish", &given[0], &given[1], &given[2])) return nullptr;
  const Items units(given[0]), budgets(given[1]), goes_on(given[2]);
  if (!units || !budgets || !goes_on) return nullptr;
  if (budgets.size() != units.size() || goes_on.size() != units.size()) {
    return PyErr_Format(PyExc_ValueError, "%zd units, %zd budgets, %zd times whether it goes on; a unit has one of each",
                        units.size(), budgets.size(), goes_on.size());
  }
  const Use fold(self);
  if (!fold) return nullptr;
  try {
    std::vector<ToFinish> wanted;
    FinishedColumns finished;
    if (!read_units(units, budgets, goes_on, wanted)) return nullptr;
    const bool is_long = fold->rows(wanted) > kManyRows;
    if (!without_gil_if(is_long, [&] { finished = fold->finish(std::move(wanted)); })) return nullptr;
    return table_dict(finished);
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

PyObject* fold_taken(PyObject* self, PyObject*) {
  const Use fold(self);
  if (!fold) return nullptr;
  without_gil_if(fold->told_rows() > kManyRows, [&] { fold->taken(); });
  Py_RETURN_NONE;
}

PyMethodDef fold_methods[] = {
    {"add", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(fold_add)), METH_VARARGS | METH_KEYWORDS,
     "add(unit, event_id, parent, name, start_ns, duration_ns, flags, first_row) -> how many rows were added, up to one with which "
     "its unit is full, or before one for which there is no memory."},
    {"add_planned", fold_add_planned, METH_VARARGS, "add_planned(ranges, first_row): add() of the ranges of a plan."},
    {"kept", fold_kept, METH_NOARGS, "kept() -> the numbers of the rows that may be kept yet, in ascending order, as a Column."},
    {"rows", fold_rows, METH_O, "rows(units) -> how many rows came to each, or since its last part."},
    {"finish", fold_finish, METH_VARARGS,
     "finish(units, budgets, goes_on) -> what became of them, as tables by name. It can be asked again until taken()."},
    {"taken", fold_taken, METH_NOARGS, "taken(): the caller has what finish told; units that don't go on are forgotten."},
    {nullptr, nullptr, 0, nullptr}};

PyTypeObject fold_type() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "otel_recfn._native.Fold";
  type.tp_basicsize = sizeof(FoldObject);
  type.tp_new = fold_new;
  type.tp_dealloc = fold_dealloc;
  type.tp_methods = fold_methods;
  type.tp_flags = Py_TPFLAGS_DEFAULT;
  type.tp_doc =
      "Fold(budget, min_duration_ns, most_rows, most_waiting): folds the ranges of units. See Python's `batches/fold/`.";
  return type;
}

PyTypeObject FoldType = fold_type();

}  // namespace

int add_fold_type(PyObject* module) {
  if (PyType_Ready(&FoldType) < 0) return -1;
  Py_INCREF(&FoldType);
  return PyModule_AddObject(module, "Fold", reinterpret_cast<PyObject*>(&FoldType));
}

}  // namespace recfn
