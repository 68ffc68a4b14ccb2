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
#include "cpython/guarded.hpp"
#include "cpython/made.hpp"
#include "cpython/one_user.hpp"
#include "fold/fold.hpp"
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

// A whole number; one that is too large for the machine as the largest that isn't. False with an error set where it is none.
bool read_whole(PyObject* number, int64_t* value) {
  const Made whole(PyNumber_Index(number));
  if (whole.object == nullptr) return false;
  int beyond = 0;
  const long long found = PyLong_AsLongLongAndOverflow(whole.object, &beyond);
  *value = beyond > 0 ? INT64_MAX : beyond < 0 ? INT64_MIN : static_cast<int64_t>(found);
  return true;
}

bool read_unit(PyObject* number, uint32_t* unit) {
  int64_t value = 0;
  if (!read_whole(number, &value)) return false;
  *unit = static_cast<uint32_t>(value);
  if (value >= 0 && value <= UINT32_MAX) return true;
  PyErr_Format(PyExc_ValueError, "%R is no unit: their numbers have 32 bits", number);
  return false;
}

// The items of a sequence, which nobody else can change.
class Items {
 public:
  explicit Items(PyObject* sequence) : items_(PySequence_Tuple(sequence)) {}
  explicit operator bool() const { return items_.object != nullptr; }
  Py_ssize_t size() const { return PyTuple_GET_SIZE(items_.object); }
  PyObject* operator[](Py_ssize_t at) const { return PyTuple_GET_ITEM(items_.object, at); }

 private:
  Made items_;
};

PyObject* fold_new(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  static const char* names[] = {"budget", "min_duration_ns", "most_waiting", nullptr};
  PyObject* given[3];
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOO:Fold", const_cast<char**>(names), &given[0], &given[1], &given[2])) {
    return nullptr;
  }
  int64_t values[3];
  for (int at = 0; at < 3; ++at) {
    if (!read_whole(given[at], &values[at])) return nullptr;
  }
  PyObject* self = type->tp_alloc(type, 0);
  if (self == nullptr) return nullptr;
  Fold* fold = &reinterpret_cast<FoldObject*>(self)->fold;
  new (fold) Fold({values[0], values[1], std::clamp<int64_t>(values[2], 1, kMostWaiting)});
  return self;
}

void fold_dealloc(PyObject* self) {
  reinterpret_cast<FoldObject*>(self)->fold.~Fold();
  Py_TYPE(self)->tp_free(self);
}

PyObject* fold_add(PyObject* self, PyObject* args) {
  PyObject *given, *number;
  int64_t first_row = 0;
  if (!PyArg_ParseTuple(args, "O!O:add_planned", &PyTuple_Type, &given, &number) || !read_whole(number, &first_row)) return nullptr;
  RangesOfPlan ranges;
  if (!ranges.take(given, first_row) || !ranges.are_known()) return nullptr;
  const Use fold(self);
  if (!fold || !without_gil_if(ranges.size() > kManyRows, [&] { fold->add(ranges); })) return nullptr;
  Py_RETURN_NONE;
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

bool read_units(const Items& units, const Items& budgets, const Items& least_ns, const Items& goes_on,
                std::vector<ToFinish>& read) {
  std::unordered_set<uint32_t> numbers;
  for (Py_ssize_t at = 0; at < units.size(); ++at) {
    ToFinish one{};
    const int more = PyObject_IsTrue(goes_on[at]);
    if (more < 0 || !read_unit(units[at], &one.unit)) return false;
    if (!read_whole(budgets[at], &one.budget) || !read_whole(least_ns[at], &one.least_ns)) return false;
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
  PyObject* given[4];
  if (!PyArg_ParseTuple(args, "OOOO:finish", &given[0], &given[1], &given[2], &given[3])) return nullptr;
  const Items units(given[0]), budgets(given[1]), least_ns(given[2]), goes_on(given[3]);
  if (!units || !budgets || !least_ns || !goes_on) return nullptr;
  if (budgets.size() != units.size() || least_ns.size() != units.size() || goes_on.size() != units.size()) {
    return PyErr_Format(PyExc_ValueError,
                        "%zd units, %zd budgets, %zd least durations, %zd times whether it goes on; a unit has one of each",
                        units.size(), budgets.size(), least_ns.size(), goes_on.size());
  }
  const Use fold(self);
  if (!fold) return nullptr;
  return guarded([&]() -> PyObject* {
    std::vector<ToFinish> wanted;
    FinishedColumns finished;
    if (!read_units(units, budgets, least_ns, goes_on, wanted)) return nullptr;
    if (!without_gil_if(fold->rows(wanted) > kManyRows, [&] { finished = fold->finish(wanted); })) return nullptr;
    return table_dict(finished);
  });
}

PyMethodDef fold_methods[] = {
    {"add_planned", fold_add, METH_VARARGS,
     "add_planned(ranges, first_row): adds all of them."},
    {"kept", fold_kept, METH_NOARGS, "kept() -> the numbers of the rows that may be kept yet, in ascending order, as a Column."},
    {"rows", fold_rows, METH_O, "rows(units) -> how many rows came to each, or since its last part."},
    {"finish", fold_finish, METH_VARARGS,
     "finish(units, budgets, least_ns, goes_on) -> what became of them, as tables by name; those that don't go on are forgotten."},
    {nullptr, nullptr, 0, nullptr}};

PyTypeObject fold_type() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "otel_recfn._native.Fold";
  type.tp_basicsize = sizeof(FoldObject);
  type.tp_new = fold_new;
  type.tp_dealloc = fold_dealloc;
  type.tp_methods = fold_methods;
  type.tp_flags = Py_TPFLAGS_DEFAULT;
  type.tp_doc = "Fold(budget, min_duration_ns, most_waiting): folds the ranges of units. See Python's `batches/fold/`.";
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
