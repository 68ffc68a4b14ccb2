// Rows of several batches, put together: column by column, each a loop without the GIL.
//
//     batch 0   name 0 1 1   names  "", a       taken: batch 1 row 0, batch 0 row 2
//     batch 1   name 1       names  "", b
//                                               name     3  1     index into all tables in a row
//                                               names    "", a, b: those that are used alone
//                                               name     2  1     index into these
//
// Batches that share a table, as those of one epoch do, need no first step.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "columns/column.hpp"
#include "columns/column_view.hpp"
#include "columns/gathered_rows.hpp"
#include "cpython/python.hpp"

namespace recfn {
namespace {

constexpr size_t kManyValues = 50'000;  // which take some 0.1 ms

// A column of one of the batches, whatever its type is.
class AnyColumn : BufferView {
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
    tables.reserve(batches.size());
    begins.reserve(batches.size());
    for (PyObject* batch : batches) {
      PyObject* const table = PyObject_GetAttrString(batch, name);
      if (table == nullptr) return false;
      tables.push_back(table);
      begins.push_back(begin);
      const Py_ssize_t size = PySequence_Size(table);
      if (size < 0) return false;
      begin += static_cast<uint32_t>(size);
      is_shared = is_shared && table == tables.front();
    }
    if (is_shared) begins.clear();
    return true;
  }

  // The entry at that index of all tables in a row, a new reference.
  PyObject* entry(uint32_t index) const {
    if (begins.empty()) return PySequence_GetItem(tables.front(), static_cast<Py_ssize_t>(index));
    const auto after = std::upper_bound(begins.begin(), begins.end(), index);
    const auto at = static_cast<size_t>(after - begins.begin()) - 1;
    return PySequence_GetItem(tables[at], static_cast<Py_ssize_t>(index - begins[at]));
  }

  // All entries, as the columns index them: the table itself where all batches share it. A new
  // reference.
  PyObject* all_entries() const {
    if (begins.empty()) return Py_NewRef(tables.front());
    Reference entries(PyList_New(0));
    for (PyObject* table : tables) {
      const Py_ssize_t end = entries ? PyList_GET_SIZE(entries.get()) : 0;
      if (!entries || PyList_SetSlice(entries.get(), end, end, table) < 0) return nullptr;
    }
    return entries.release();
  }

  const char* name;
  std::vector<PyObject*> tables;
  std::vector<uint32_t> begins;  // of each batch's; empty where all share one
};

// One column, of every batch that has rows that are asked for.
struct Gathering {
  PyObject* name = nullptr;  // borrowed of what was given
  const Tables* tables = nullptr;
  bool is_text_column = false;
  std::vector<AnyColumn> columns;
  std::vector<char> bytes;  // of the rows that are asked for

  bool take(const std::vector<PyObject*>& batches) {
    columns.reserve(batches.size());
    for (PyObject* batch : batches) {
      columns.emplace_back();
      if (!columns.back().take(batch, name)) return false;
      const Py_ssize_t item = columns.back().item_bytes();
      if (item == columns.front().item_bytes() && (tables == nullptr || item == sizeof(uint32_t))) {
        continue;
      }
      PyErr_Format(PyExc_ValueError,
                   "column %U is of another type than others; all batches have the same columns",
                   name);
      return false;
    }
    return true;
  }

  void gather(const ChosenRows& wanted) {
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
  void copy(const ChosenRows& wanted) {
    copy_items(wanted, kBytes);
  }

  // Inlined, for a size that is known.
  __attribute__((always_inline)) void copy_items(const ChosenRows& wanted, size_t item) {
    char* to = bytes.data();
    for (size_t at = 0; at < wanted.row.size(); ++at) {
      std::memcpy(to, columns[wanted.batch[at]].at(wanted.row[at]), item);
      to += item;
    }
  }

  void index_all_tables(const ChosenRows& wanted) {
    uint32_t* const index = indices();
    for (size_t at = 0; at < wanted.row.size(); ++at) {
      if (!is_text_column || index[at] != 0) index[at] += tables->begins[wanted.batch[at]];
    }
  }
};

// The texts that these columns have, which index them from now on; the empty one stays the first.
std::vector<uint32_t> number_texts(std::vector<Gathering>& all, size_t rows) {
  std::vector<uint32_t> found{0};
  for (Gathering& one : all) {
    if (one.is_text_column) found.insert(found.end(), one.indices(), one.indices() + rows);
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  for (Gathering& one : all) {
    if (!one.is_text_column) continue;
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

// What is gathered of one call's rows.
struct Gathered {
  explicit Gathered(const ChosenRows& chosen) : rows(chosen) {}

  const ChosenRows& rows;
  Tables names{"names"};
  Tables tracks{"tracks"};
  Tables contexts{"contexts"};
  std::vector<Gathering> columns;
  std::vector<uint32_t> texts;

  // Reads a column, as it is described. False with an error set.
  bool take_column(PyObject* described) {
    PyObject *name, *shared;
    const char* table;
    if (!PyArg_ParseTuple(described, "UOz", &name, &shared, &table)) return false;
    const int empty = is_shared(rows.batches, name, shared);
    if (empty != 0) return empty > 0;
    columns.emplace_back();
    Gathering& column = columns.back();
    column.name = name;
    for (const Tables* each : {&names, &tracks, &contexts}) {
      if (table != nullptr && std::strcmp(table, each->name) == 0) column.tables = each;
    }
    column.is_text_column = column.tables == &names;
    return column.take(rows.batches);
  }

  // Without the GIL.
  void gather() {
    for (Gathering& column : columns) column.gather(rows);
    texts = number_texts(columns, rows.size());
  }

  PyObject* fields() {
    const Reference dict(PyDict_New());
    for (Gathering& each : columns) {
      const Reference column(dict ? make_column(each.bytes) : nullptr);
      if (!column || PyDict_SetItem(dict.get(), each.name, column.get()) < 0) return nullptr;
    }
    const auto add = [&](const char* name, Reference value) {
      return value && PyDict_SetItemString(dict.get(), name, value.get()) == 0;
    };
    const auto name = [&](uint32_t index) { return names.entry(index); };
    const bool is_complete = dict && add("names", Reference(list_of(texts, name))) &&
                             add("tracks", Reference(tracks.all_entries())) &&
                             add("contexts", Reference(contexts.all_entries())) &&
                             add("drained_ns", latest_drain());
    return is_complete ? Py_NewRef(dict.get()) : nullptr;
  }

 private:
  Reference latest_drain() const {
    Reference latest;
    for (PyObject* batch : rows.batches) {
      Reference drained_ns(PyObject_GetAttrString(batch, "drained_ns"));
      if (!drained_ns) return {};
      const int is_later =
          latest ? PyObject_RichCompareBool(drained_ns.get(), latest.get(), Py_GT) : 1;
      if (is_later < 0) return {};
      if (is_later > 0) latest = std::move(drained_ns);
    }
    return latest;
  }
};

// All rows of the batches, one after the other. False with an error set.
bool choose_all(PyObject* batches, ChosenRows& chosen) {
  for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(batches); ++at) {
    PyObject* const batch = PyTuple_GET_ITEM(batches, at);
    const Py_ssize_t size = PyObject_Size(batch);
    if (size < 0) return false;
    if (size == 0) continue;
    for (Py_ssize_t row = 0; row < size; ++row) {
      chosen.batch.push_back(static_cast<uint32_t>(chosen.batches.size()));
      chosen.row.push_back(row);
    }
    chosen.batches.push_back(batch);
  }
  return true;
}

PyObject* gather_batches(PyObject*, PyObject* arguments) {
  PyObject *columns, *batches;
  if (!PyArg_ParseTuple(arguments, "O!O!:gather_batches", &PyTuple_Type, &columns, &PyTuple_Type,
                        &batches)) {
    return nullptr;
  }
  return guarded([&]() -> PyObject* {
    ChosenRows chosen;
    if (!choose_all(batches, chosen)) return nullptr;
    return chosen.batches.empty() ? PyDict_New() : gathered_fields(columns, chosen);
  });
}

PyMethodDef functions[] = {{"gather_batches", gather_batches, METH_VARARGS,
                            "gather_batches(columns, batches) -> the fields of a batch of all "
                            "their rows; an empty dict if they have none."},
                           {nullptr, nullptr, 0, nullptr}};

}  // namespace

PyObject* gathered_fields(PyObject* columns, const ChosenRows& rows) {
  Gathered gathered(rows);
  if (!gathered.names.take(rows.batches) || !gathered.tracks.take(rows.batches) ||
      !gathered.contexts.take(rows.batches)) {
    return nullptr;
  }
  gathered.columns.reserve(static_cast<size_t>(PyTuple_GET_SIZE(columns)));
  for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(columns); ++at) {
    if (!gathered.take_column(PyTuple_GET_ITEM(columns, at))) return nullptr;
  }
  const bool is_long = rows.size() * gathered.columns.size() > kManyValues;
  return without_gil_if(is_long, [&] { gathered.gather(); }) ? gathered.fields() : nullptr;
}

int add_gathering(PyObject* module) {
  return PyModule_AddType(module, &ColumnType) < 0 ? -1 : PyModule_AddFunctions(module, functions);
}

}  // namespace recfn
