// A column handed to Python without a copy: an object with the buffer protocol that owns or shares
// the memory.
#pragma once
#include <cstddef>
#include <memory>
#include <new>
#include <utility>

#include "cpython/python.hpp"

namespace recfn {

// Bytes that stay where they are as long as their owner lives.
struct OwnedBytes {
  std::shared_ptr<void> owner;
  void* first;
  size_t size;
};

struct ColumnObject {
  PyObject_HEAD
  OwnedBytes bytes;
};

inline void column_dealloc(PyObject* self) {
  reinterpret_cast<ColumnObject*>(self)->bytes.~OwnedBytes();
  Py_TYPE(self)->tp_free(self);
}

inline int column_getbuffer(PyObject* self, Py_buffer* view, int flags) {
  const OwnedBytes& bytes = reinterpret_cast<ColumnObject*>(self)->bytes;
  // An empty vector may have its items nowhere, and a buffer is somewhere.
  static char nothing;
  void* first = bytes.size == 0 ? &nothing : bytes.first;
  return PyBuffer_FillInfo(view, self, first, static_cast<Py_ssize_t>(bytes.size), 1, flags);
}

inline PyBufferProcs column_buffer = {column_getbuffer, nullptr};

inline PyTypeObject column_type() {
  PyTypeObject type = type_of_size("otel_recfn._native.Column", sizeof(ColumnObject));
  type.tp_dealloc = column_dealloc;
  type.tp_as_buffer = &column_buffer;
  type.tp_doc = "Owns the bytes of one column; read them through the buffer protocol.";
  return type;
}

inline PyTypeObject ColumnType = column_type();

inline PyObject* new_column(OwnedBytes&& bytes) {
  auto* column = PyObject_New(ColumnObject, &ColumnType);
  if (column != nullptr) new (&column->bytes) OwnedBytes(std::move(bytes));
  return reinterpret_cast<PyObject*>(column);
}

// A vector's items as a column, which takes its memory.
template <typename Vector>
PyObject* make_column(Vector& items) {
  const auto owner = std::make_shared<Vector>(std::move(items));
  return new_column({owner, owner->data(), owner->size() * sizeof(typename Vector::value_type)});
}

// The same, owned here.
template <typename Vector>
Reference column(Vector& items) {
  return Reference(make_column(items));
}

template <typename Vector>
bool put_column(PyObject* tuple, Py_ssize_t position, Vector& items) {
  PyObject* column = tuple != nullptr ? make_column(items) : nullptr;
  if (column != nullptr) PyTuple_SET_ITEM(tuple, position, column);
  return column != nullptr;
}

// A tuple of a column for each vector, which take their memory.
template <typename... Vectors>
PyObject* column_tuple(Vectors&... columns) {
  const Reference tuple(PyTuple_New(sizeof...(columns)));
  Py_ssize_t position = 0;
  return (put_column(tuple.get(), position++, columns) && ...) ? Py_NewRef(tuple.get()) : nullptr;
}

}  // namespace recfn
