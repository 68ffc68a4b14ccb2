// A column handed to Python without a copy: an object with the buffer protocol that owns or shares the memory.
#pragma once
#include <cstddef>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "cpython/python.hpp"

namespace recfn {

// Bytes that stay where they are as long as this object lives: of a vector, which is its own then, or of memory that it shares.
// It needs no memory of its own.
class OwnedBytes {
 public:
  template <typename T, typename Allocator>
  OwnedBytes(std::vector<T, Allocator>&& items) noexcept  // NOLINT(google-explicit-constructor)
      : OwnedBytes(items.data(), items.size() * sizeof(T), std::move(items)) {}
  OwnedBytes(std::shared_ptr<void> owner, void* first, size_t bytes) noexcept : OwnedBytes(first, bytes, std::move(owner)) {}
  OwnedBytes(OwnedBytes&& other) noexcept : first_(other.first_), bytes_(other.bytes_), relocate_(other.relocate_) {
    relocate_(other.place_, place_);
    other.first_ = nullptr, other.bytes_ = 0;
  }
  OwnedBytes(const OwnedBytes&) = delete;
  OwnedBytes& operator=(const OwnedBytes&) = delete;
  OwnedBytes& operator=(OwnedBytes&&) = delete;
  ~OwnedBytes() { relocate_(place_, nullptr); }

  void* first() const { return first_; }
  size_t size() const { return bytes_; }

 private:
  template <typename Owner>
  OwnedBytes(void* first, size_t bytes, Owner&& owner) noexcept : first_(first), bytes_(bytes), relocate_(&relocate<Owner>) {
    static_assert(sizeof(Owner) <= sizeof(place_) && alignof(Owner) <= alignof(std::max_align_t), "vectors are the largest owners");
    new (place_) Owner(std::move(owner));
  }

  // Moves the owner there, which leaves an empty one; without a place it ends.
  template <typename Owner>
  static void relocate(void* from, void* to) {
    auto* owner = static_cast<Owner*>(from);
    if (to == nullptr) {
      owner->~Owner();
    } else {
      new (to) Owner(std::move(*owner));
    }
  }

  void* first_;
  size_t bytes_;
  void (*relocate_)(void* from, void* to);
  alignas(std::max_align_t) unsigned char place_[sizeof(std::vector<char>)];
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
  static char nothing;
  void* first = bytes.size() == 0 ? &nothing : bytes.first();
  return PyBuffer_FillInfo(view, self, first, static_cast<Py_ssize_t>(bytes.size()), 1, flags);
}

inline PyBufferProcs column_buffer = {column_getbuffer, nullptr};

inline PyTypeObject column_type() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "otel_recfn._native.Column";
  type.tp_basicsize = sizeof(ColumnObject);
  type.tp_dealloc = column_dealloc;
  type.tp_as_buffer = &column_buffer;
  type.tp_flags = Py_TPFLAGS_DEFAULT;
  type.tp_doc = "Owns the bytes of one column; read them through the buffer protocol.";
  return type;
}

inline PyTypeObject ColumnType = column_type();

inline PyObject* new_column(OwnedBytes&& bytes) {
  auto* column = PyObject_New(ColumnObject, &ColumnType);
  if (column != nullptr) new (&column->bytes) OwnedBytes(std::move(bytes));
  return reinterpret_cast<PyObject*>(column);
}

// False with an error set where it is none, or there is no memory for a column.
template <typename Vector>
bool put_column(PyObject* tuple, Py_ssize_t place, Vector& items) {
  PyObject* column = tuple == nullptr ? nullptr : new_column(std::move(items));
  if (column != nullptr) PyTuple_SET_ITEM(tuple, place, column);
  return column != nullptr;
}

// Takes the vectors.
template <typename... Vectors>
PyObject* column_tuple(Vectors&... columns) {
  PyObject* tuple = PyTuple_New(sizeof...(columns));
  Py_ssize_t place = 0;
  if (!(put_column(tuple, place++, columns) && ...)) Py_CLEAR(tuple);
  return tuple;
}

}  // namespace recfn
