// Structs as Python sees them, by the names that model/fields.hpp gives: rows of numpy's tables,
// and records.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "cpython/python.hpp"
#include "model/fields.hpp"

namespace recfn {

// What numpy makes a table's type of: the names, types and offsets of a row's members, and its
// size. Null with an error set.
template <typename Row>
PyObject* table_type() {
  static_assert(has_each_field<Row>(), "fields_of lists every member, in order");
  const auto fields = fields_of(static_cast<const Row*>(nullptr));
  const Reference names(
      list_of(fields, [](const Field& field) { return PyUnicode_FromString(field.name); }));
  const Reference types(
      list_of(fields, [](const Field& field) { return PyUnicode_FromString(field.type); }));
  const Reference offsets(
      list_of(fields, [](const Field& field) { return PyLong_FromSize_t(field.offset); }));
  if (!names || !types || !offsets) return nullptr;
  return Py_BuildValue("{sOsOsOsn}", "names", names.get(), "formats", types.get(), "offsets",
                       offsets.get(), "itemsize", static_cast<Py_ssize_t>(sizeof(Row)));
}

// A type of Python's for tuples whose items have names. It is made with the module, and stays.
class RecordType {
 public:
  // Adds the type to the module. False with an error set.
  bool add_to(PyObject* module, const char* full_name, const char* documentation,
              const std::vector<const char*>& names) {
    std::vector<PyStructSequence_Field> fields;
    for (const char* name : names) fields.push_back({name, nullptr});
    fields.push_back({nullptr, nullptr});
    PyStructSequence_Desc description = {full_name, documentation, fields.data(),
                                         static_cast<int>(names.size())};
    type_ = PyStructSequence_NewType(&description);
    return type_ != nullptr && PyModule_AddType(module, type_) == 0;
  }

  // A record of these items, each a Reference. Null with an error set if one of them is null.
  template <typename... Items>
  PyObject* make(Items... items) const {
    if (!(static_cast<bool>(items) && ...)) return nullptr;
    Reference record(PyStructSequence_New(type_));
    if (!record) return nullptr;
    Py_ssize_t index = 0;
    (PyStructSequence_SetItem(record.get(), index++, items.release()), ...);
    return record.release();
  }

 private:
  PyTypeObject* type_ = nullptr;
};

// A type of records that have the members of a struct.
template <typename Row>
class RowRecordType {
 public:
  bool add_to(PyObject* module, const char* full_name, const char* documentation) {
    static_assert(has_each_field<Row>(), "fields_of lists every member, in order");
    std::vector<const char*> names;
    for (const Field& field : fields_of(static_cast<const Row*>(nullptr))) {
      names.push_back(field.name);
    }
    return type_.add_to(module, full_name, documentation, names);
  }

  // A list of a record for each row.
  template <typename Rows>
  PyObject* list(const Rows& rows) const {
    return list_of(rows, [this](const Row& row) { return make(row); });
  }

  // Null with an error set where there is no memory.
  PyObject* make(const Row& row) const {
    return make(row,
                std::make_index_sequence<fields_of(static_cast<const Row*>(nullptr)).size()>());
  }

 private:
  template <size_t... Places>
  PyObject* make(const Row& row, std::index_sequence<Places...>) const {
    return type_.make(Reference(number<Places>(row))...);
  }

  // The member at that place.
  template <size_t Place>
  static PyObject* number(const Row& row) {
    constexpr Field field = fields_of(static_cast<const Row*>(nullptr))[Place];
    const char* const bytes = reinterpret_cast<const char*>(&row) + field.offset;
    constexpr bool is_signed = field.type[0] == 'i';
    if constexpr (field.type[0] == '?') {
      return PyBool_FromLong(*bytes != 0 ? 1 : 0);
    } else if constexpr (field.type[1] == '1') {
      return PyLong_FromLong(value<std::conditional_t<is_signed, int8_t, uint8_t>>(bytes));
    } else if constexpr (field.type[1] == '4') {
      return PyLong_FromLongLong(value<std::conditional_t<is_signed, int32_t, uint32_t>>(bytes));
    } else if constexpr (is_signed) {
      return PyLong_FromLongLong(value<int64_t>(bytes));
    } else {
      return PyLong_FromUnsignedLongLong(value<uint64_t>(bytes));
    }
  }

  template <typename T>
  static T value(const char* bytes) {
    T result;
    std::memcpy(&result, bytes, sizeof(T));
    return result;
  }

  RecordType type_;
};

}  // namespace recfn
