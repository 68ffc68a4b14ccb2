#include "columns/gathered_rows.hpp"

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "columns/column.hpp"
#include "columns/column_view.hpp"
#include "cpython/gil.hpp"
#include "cpython/guarded.hpp"
#include "cpython/made.hpp"

namespace recfn {
namespace {

constexpr size_t kManyValues = 50'000;  // which take some 0.1 ms

// A column of one of the batches, whatever its type is. Taken and released with the GIL held.
class AnyColumn {
 public:
  AnyColumn() = default;
  AnyColumn(AnyColumn&& other) noexcept : view_(other.view_), held_(std::exchange(other.held_, false)) {}
  AnyColumn(const AnyColumn&) = delete;
  ~AnyColumn() {
    if (held_) PyBuffer_Release(&view_);
  }

  bool take(PyObject* batch, PyObject* name) {
    const Made column(PyObject_GetAttr(batch, name));
    if (column.object == nullptr || PyObject_GetBuffer(column.object, &view_, PyBUF_STRIDED_RO) < 0) return false;
    held_ = true;
    if (view_.ndim == 1) return true;
    PyErr_Format(PyExc_ValueError, "column %U has %d dimensions; a batch's columns have one", name, view_.ndim);
    return false;
  }

  Py_ssize_t size() const { return view_.shape[0]; }
  Py_ssize_t item_bytes() const { return view_.itemsize; }
  const char* at(int64_t row) const { return static_cast<const char*>(view_.buf) + row * view_.strides[0]; }

 private:
  Py_buffer view_{};
  bool held_ = false;
};

// What is asked for: each row by its batch and its place there.
struct Wanted {
  ColumnView<int64_t> part, row;

  bool take(PyObject* parts, PyObject* rows) {
    if (!part.take(parts, "part", nullptr) || !row.take(rows, "row", nullptr)) return false;
    if (part.size() == row.size()) return true;
    PyErr_SetString(PyExc_ValueError, "as many parts as rows are needed");
    return false;
  }
  size_t size() const { return static_cast<size_t>(row.size()); }
};

// One column, of every batch.
struct Gathering {
  std::vector<AnyColumn> columns;
  std::vector<char> bytes;  // of the rows that are asked for

  bool take(PyObject* batches, PyObject* name, const Gathering* other) {
    columns.reserve(static_cast<size_t>(PyTuple_GET_SIZE(batches)));
    for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(batches); ++at) {
      columns.emplace_back();
      if (!columns.back().take(PyTuple_GET_ITEM(batches, at), name)) return false;
      const bool is_like_first = columns.back().item_bytes() == columns.front().item_bytes();
      const bool is_long = other == nullptr || columns.back().size() == other->columns[static_cast<size_t>(at)].size();
      if (is_like_first && is_long) continue;
      PyErr_Format(PyExc_ValueError, "column %U is of another type or length than others; all batches have the same columns", name);
      return false;
    }
    return true;
  }

  bool has(const Wanted& wanted) const {
    for (Py_ssize_t at = 0; at < wanted.row.size(); ++at) {
      const int64_t part = wanted.part[at], row = wanted.row[at];
      if (part < 0 || part >= static_cast<int64_t>(columns.size())) return false;
      if (row < 0 || row >= columns[static_cast<size_t>(part)].size()) return false;
    }
    return true;
  }

  void gather(const Wanted& wanted) {
    const size_t item = columns.empty() ? 0 : static_cast<size_t>(columns.front().item_bytes());
    bytes.resize(wanted.size() * item);
    switch (item) {
      case 1: return copy<1>(wanted);
      case 4: return copy<4>(wanted);
      case 8: return copy<8>(wanted);
      default: return copy_items(wanted, item);
    }
  }

 private:
  template <size_t kBytes>
  void copy(const Wanted& wanted) {
    copy_items(wanted, kBytes);
  }

  // Inlined, for a size that is known.
  __attribute__((always_inline)) void copy_items(const Wanted& wanted, size_t item) {
    char* to = bytes.data();
    for (Py_ssize_t at = 0; at < wanted.row.size(); ++at, to += item) {
      std::memcpy(to, columns[static_cast<size_t>(wanted.part[at])].at(wanted.row[at]), item);
    }
  }
};

// False with an error set.
bool take_all(std::vector<Gathering>& all, PyObject* names, PyObject* batches) {
  all.reserve(static_cast<size_t>(PyTuple_GET_SIZE(names)));
  for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(names); ++at) {
    all.emplace_back();
    if (!all.back().take(batches, PyTuple_GET_ITEM(names, at), at == 0 ? nullptr : &all.front())) return false;
  }
  return true;
}

PyObject* column_dict(PyObject* names, std::vector<Gathering>& all) {
  PyObject* dict = PyDict_New();
  for (size_t at = 0; dict != nullptr && at < all.size(); ++at) {
    const Made column(new_column(std::move(all[at].bytes)));
    PyObject* name = PyTuple_GET_ITEM(names, static_cast<Py_ssize_t>(at));
    if (column.object == nullptr || PyDict_SetItem(dict, name, column.object) < 0) Py_CLEAR(dict);
  }
  return dict;
}

PyObject* gather_rows(PyObject*, PyObject* arguments) {
  PyObject *names, *batches, *parts, *rows;
  if (!PyArg_ParseTuple(arguments, "O!O!OO:gather_rows", &PyTuple_Type, &names, &PyTuple_Type, &batches, &parts, &rows)) {
    return nullptr;
  }
  return guarded([&]() -> PyObject* {
    Wanted wanted;
    std::vector<Gathering> all;
    if (!wanted.take(parts, rows) || !take_all(all, names, batches)) return nullptr;
    bool known = true;
    const bool done = without_gil_if(wanted.size() * all.size() > kManyValues, [&] {
      known = all.empty() || all.front().has(wanted);
      for (Gathering& each : all) {
        if (known) each.gather(wanted);
      }
    });
    if (done && !known) PyErr_SetString(PyExc_IndexError, "no batch has such a row; ask for rows that are there");
    return done && known ? column_dict(names, all) : nullptr;
  });
}

PyMethodDef functions[] = {
    {"gather_rows", gather_rows, METH_VARARGS,
     "gather_rows(names, batches, part, row) -> these columns, by name, of the rows that stand there in those parts."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int add_gathering(PyObject* module) { return PyModule_AddFunctions(module, functions); }

}  // namespace recfn
