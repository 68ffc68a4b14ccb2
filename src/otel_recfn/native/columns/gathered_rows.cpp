// Rows of several batches, put together.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "columns/column.hpp"
#include "columns/column_view.hpp"
#include "cpython/python.hpp"

namespace recfn {
namespace {

constexpr size_t kManyValues = 50'000;  // which take some 0.1 ms

// A column of one of the batches, whatever its type is.
class AnyColumn : TakenBuffer {
 public:
  bool take(PyObject* batch, PyObject* name) {
    const Reference column(PyObject_GetAttr(batch, name));
    if (!column || !take_buffer(column.get(), PyBUF_STRIDED_RO)) return false;
    if (view_.ndim == 1) return true;
    PyErr_Format(PyExc_ValueError, "column %U has %d dimensions; a batch's columns have one", name,
                 view_.ndim);
    return false;
  }

  Py_ssize_t item_bytes() const { return view_.itemsize; }
  const char* at(int64_t row) const {
    return static_cast<const char*>(view_.buf) + row * view_.strides[0];
  }
};

// The rows of one batch that wait.
struct Held {
  ColumnView<int64_t> number, row;  // in ascending order; the place in the batch
  PyObject* batch = nullptr;        // borrowed of the tuple that was given

  bool take(PyObject* given) {
    PyObject *numbers, *rows;
    return PyArg_ParseTuple(given, "OOO", &numbers, &rows, &batch) &&
           number.take_array(numbers, "number") && row.take_array(rows, "row") &&
           equally_long({number.size(), row.size()});
  }

  // The place in the batch of the row with that number; -1: it is in another batch.
  int64_t row_of(int64_t wanted) const {
    Py_ssize_t place = static_cast<Py_ssize_t>(wanted - number[0]);
    if (place < number.size() && number[place] == wanted)
      return row[place];  // no number is missing before it
    place = 0;
    for (Py_ssize_t end = number.size(); place < end;) {
      const Py_ssize_t middle = place + (end - place) / 2;
      number[middle] < wanted ? place = middle + 1 : end = middle;
    }
    return place < number.size() && number[place] == wanted ? row[place] : -1;
  }
};

// What is asked for: each row by which of the batches that have any it is of, and its place there.
struct Wanted {
  std::vector<size_t> part;
  std::vector<int64_t> row;
  std::vector<size_t> used;  // of what is held, what has any, in ascending order

  bool find(const std::vector<Held>& held, const ColumnView<int64_t>& numbers) {
    const auto count = static_cast<size_t>(numbers.size());
    std::vector<size_t> place_of(held.size(), SIZE_MAX);
    part.resize(count), row.resize(count);
    for (size_t at = 0; at < count; ++at) {
      const int64_t number = numbers[static_cast<Py_ssize_t>(at)];
      const auto is_before = [](int64_t wanted_number, const Held& one) {
        return wanted_number < one.number[0];
      };
      const auto after = std::upper_bound(held.begin(), held.end(), number, is_before);
      if (after == held.begin()) return false;
      part[at] = static_cast<size_t>(after - held.begin()) - 1;
      row[at] = held[part[at]].row_of(number);
      if (row[at] < 0) return false;
      place_of[part[at]] = 0;
    }
    for (size_t at = 0; at < held.size(); ++at) {
      if (place_of[at] == 0) place_of[at] = used.size(), used.push_back(at);
    }
    for (size_t& one : part) one = place_of[one];
    return true;
  }
};

// What columns of the batches index: one table after the other, where they don't share one.
struct Tables {
  explicit Tables(const char* its_name) : name(its_name) {}
  Tables(const Tables&) = delete;
  Tables& operator=(const Tables&) = delete;
  ~Tables() {
    for (PyObject* table : tables) Py_DECREF(table);
  }

  bool take(const std::vector<PyObject*>& batches) {
    bool is_shared = true;
    uint32_t begin = 0;
    tables.reserve(batches.size()), begins.reserve(batches.size());
    for (PyObject* batch : batches) {
      PyObject* const table = PyObject_GetAttrString(batch, name);
      if (table == nullptr) return false;
      tables.push_back(table), begins.push_back(begin);
      const Py_ssize_t size = PySequence_Size(table);
      if (size < 0) return false;
      begin += static_cast<uint32_t>(size);
      is_shared = is_shared && table == tables.front();
    }
    if (is_shared) begins.clear();
    return true;
  }

  // The entry at that index, a new reference.
  PyObject* entry(uint32_t index) const {
    if (begins.empty()) return PySequence_GetItem(tables.front(), static_cast<Py_ssize_t>(index));
    const size_t at = static_cast<size_t>(std::upper_bound(begins.begin(), begins.end(), index) -
                                          begins.begin()) -
                      1;
    return PySequence_GetItem(tables[at], static_cast<Py_ssize_t>(index - begins[at]));
  }

  const char* name;
  std::vector<PyObject*> tables;
  std::vector<uint32_t> begins;  // of each batch's; empty where all share one
};

// One column, of every batch that has rows that are asked for.
struct Gathering {
  PyObject* name = nullptr;  // borrowed of what was given
  const Tables* tables = nullptr;
  bool is_of_texts = false;
  std::vector<AnyColumn> columns;
  std::vector<char> bytes;  // of the rows that are asked for

  bool take(const std::vector<PyObject*>& batches) {
    columns.reserve(batches.size());
    for (PyObject* batch : batches) {
      columns.emplace_back();
      if (!columns.back().take(batch, name)) return false;
      const Py_ssize_t item = columns.back().item_bytes();
      if (item == columns.front().item_bytes() && (tables == nullptr || item == sizeof(uint32_t)))
        continue;
      PyErr_Format(PyExc_ValueError,
                   "column %U is of another type than others; all batches have the same columns",
                   name);
      return false;
    }
    return true;
  }

  void gather(const Wanted& wanted) {
    const auto item = static_cast<size_t>(columns.front().item_bytes());
    bytes.resize(wanted.row.size() * item);
    switch (item) {
      case 1:
        copy<1>(wanted);
        break;
      case 4:
        copy<4>(wanted);
        break;
      case 8:
        copy<8>(wanted);
        break;
      default:
        copy_items(wanted, item);
    }
    if (tables != nullptr && !tables->begins.empty()) index_all_tables(wanted);
  }

  uint32_t* indices() { return reinterpret_cast<uint32_t*>(bytes.data()); }

 private:
  template <size_t kBytes>
  void copy(const Wanted& wanted) {
    copy_items(wanted, kBytes);
  }

  // Inlined, for a size that is known.
  __attribute__((always_inline)) void copy_items(const Wanted& wanted, size_t item) {
    char* to = bytes.data();
    for (size_t at = 0; at < wanted.row.size(); ++at, to += item) {
      std::memcpy(to, columns[wanted.part[at]].at(wanted.row[at]), item);
    }
  }

  void index_all_tables(const Wanted& wanted) {
    uint32_t* const index = indices();
    for (size_t at = 0; at < wanted.row.size(); ++at) {
      if (!is_of_texts || index[at] != 0) index[at] += tables->begins[wanted.part[at]];
    }
  }
};

// The texts that these columns have, which index them from now on; the empty one stays the first.
std::vector<uint32_t> number_texts(std::vector<Gathering>& all, size_t rows) {
  std::vector<uint32_t> found{0};
  for (Gathering& one : all) {
    if (one.is_of_texts) found.insert(found.end(), one.indices(), one.indices() + rows);
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  for (Gathering& one : all) {
    if (!one.is_of_texts) continue;
    for (size_t at = 0; at < rows; ++at) {
      uint32_t& index = one.indices()[at];
      index = static_cast<uint32_t>(std::lower_bound(found.begin(), found.end(), index) -
                                    found.begin());
    }
  }
  return found;
}

// Whether all of the batches share this column, in which there is nothing. -1 with an error set.
int is_shared(const std::vector<PyObject*>& batches, PyObject* name, PyObject* shared) {
  for (PyObject* batch : batches) {
    if (shared == Py_None) return 0;
    const Reference column(PyObject_GetAttr(batch, name));
    const Reference base(column ? PyObject_GetAttrString(column.get(), "base") : nullptr);
    if (!base) return -1;
    if (base.get() != shared) return 0;
  }
  return 1;
}

struct Asked {
  std::vector<Held> held;
  ColumnView<int64_t> numbers;
  Wanted wanted;
  std::vector<PyObject*> batches;
  Tables names{"names"}, tracks{"tracks"}, contexts{"contexts"};
  std::vector<Gathering> columns;

  // Reads what is asked for, but for the columns. False with an error set.
  bool take(PyObject* all_held, PyObject* its_numbers) {
    held = std::vector<Held>(static_cast<size_t>(PyTuple_GET_SIZE(all_held)));
    for (size_t at = 0; at < held.size(); ++at) {
      if (!held[at].take(PyTuple_GET_ITEM(all_held, static_cast<Py_ssize_t>(at)))) return false;
    }
    if (!numbers.take_array(its_numbers, "numbers")) return false;
    if (!wanted.find(held, numbers)) {
      return PyErr_SetString(PyExc_IndexError,
                             "no batch has such a row; ask for rows that are there"),
             false;
    }
    for (const size_t at : wanted.used) batches.push_back(held[at].batch);
    return names.take(batches) && tracks.take(batches) && contexts.take(batches);
  }

  bool take_column(PyObject* given) {
    PyObject *name, *shared;
    const char* table;
    if (!PyArg_ParseTuple(given, "UOz", &name, &shared, &table)) return false;
    const int empty = is_shared(batches, name, shared);
    if (empty != 0) return empty > 0;
    columns.emplace_back();
    Gathering& column = columns.back();
    column.name = name;
    for (const Tables* each : {&names, &tracks, &contexts}) {
      if (table != nullptr && std::strcmp(table, each->name) == 0) column.tables = each;
    }
    column.is_of_texts = column.tables == &names;
    return column.take(batches);
  }

  // The texts that it found. Without the GIL.
  std::vector<uint32_t> gather() {
    for (Gathering& column : columns) column.gather(wanted);
    return number_texts(columns, wanted.row.size());
  }

  PyObject* column_dict() {
    const Reference dict(PyDict_New());
    for (Gathering& each : columns) {
      const Reference column(dict ? column_of(each.bytes) : nullptr);
      if (!column || PyDict_SetItem(dict.get(), each.name, column.get()) < 0) return nullptr;
    }
    return Py_XNewRef(dict.get());
  }
};

PyObject* gather_rows(PyObject*, PyObject* arguments) {
  PyObject *columns, *held, *numbers;
  if (!PyArg_ParseTuple(arguments, "O!O!O:gather_rows", &PyTuple_Type, &columns, &PyTuple_Type,
                        &held, &numbers))
    return nullptr;
  return guarded([&]() -> PyObject* {
    Asked asked;
    if (!asked.take(held, numbers)) return nullptr;
    asked.columns.reserve(static_cast<size_t>(PyTuple_GET_SIZE(columns)));
    for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(columns); ++at) {
      if (!asked.take_column(PyTuple_GET_ITEM(columns, at))) return nullptr;
    }
    std::vector<uint32_t> texts;
    const bool is_long = asked.wanted.row.size() * asked.columns.size() > kManyValues;
    if (!without_gil_if(is_long, [&] { texts = asked.gather(); })) return nullptr;
    const Reference gathered(asked.column_dict());
    const Reference names(list_of(texts, [&](uint32_t index) { return asked.names.entry(index); }));
    const Reference used(
        list_of(asked.wanted.used, [](size_t at) { return PyLong_FromSize_t(at); }));
    if (!gathered || !names || !used) return nullptr;
    return PyTuple_Pack(3, gathered.get(), names.get(), used.get());
  });
}

PyMethodDef functions[] = {{"gather_rows", gather_rows, METH_VARARGS,
                            "gather_rows(columns, held, numbers) -> these rows' columns, the texts "
                            "that they index, and what of the held ones has any."},
                           {nullptr, nullptr, 0, nullptr}};

}  // namespace

int add_gathering(PyObject* module) {
  return PyModule_AddType(module, &ColumnType) < 0 ? -1 : PyModule_AddFunctions(module, functions);
}

}  // namespace recfn
