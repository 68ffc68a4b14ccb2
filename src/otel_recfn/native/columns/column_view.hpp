// Columns and tables of Python's through the buffer protocol.
#pragma once
#include "cpython/python.hpp"
#include "model/columns.hpp"

#include <cstddef>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

namespace recfn {

// A buffer of a Python object. Taken and released with the GIL held.
class BufferView {
 public:
  BufferView() = default;
  BufferView(BufferView&& other) noexcept
      : view_(other.view_), is_open_(std::exchange(other.is_open_, false)) {}
  BufferView(const BufferView&) = delete;
  BufferView& operator=(const BufferView&) = delete;
  ~BufferView() {
    if (is_open_) PyBuffer_Release(&view_);
  }

 protected:
  bool take_buffer(PyObject* object, int flags) {
    is_open_ = PyObject_GetBuffer(object, &view_, flags) == 0;
    return is_open_;
  }

  Py_buffer view_{};
  bool is_open_ = false;
};

// One column of a batch. One that isn't contiguous is copied, so that reading a row is one step.
template <typename T>
class ColumnView : BufferView {
 public:
  // The owner's attribute of that name.
  bool take(PyObject* owner, const char* name) {
    const Reference array(PyObject_GetAttrString(owner, name));
    return array && take_array(array.get(), name);
  }

  bool take_array(PyObject* array, const char* name) {
    if (!take_buffer(array, PyBUF_STRIDED_RO)) return false;
    if (view_.ndim == 1 && view_.itemsize == static_cast<Py_ssize_t>(sizeof(T))) return take_rows();
    PyErr_Format(
        PyExc_TypeError,
        "column %s has items of %zd bytes in %d dimensions; pass one dimension of %zu bytes", name,
        view_.itemsize, view_.ndim, sizeof(T));
    return false;
  }

  Py_ssize_t size() const { return size_; }

  T operator[](Py_ssize_t row) const {
    T value;
    std::memcpy(&value, rows_ + row * kStep, sizeof(T));
    return value;
  }

 private:
  static constexpr Py_ssize_t kStep = sizeof(T);

  bool take_rows() {
    size_ = view_.shape[0];
    rows_ = static_cast<const char*>(view_.buf);
    const Py_ssize_t step = view_.strides[0];
    if (step == kStep || size_ < 2) return true;
    copy_.reset(new (std::nothrow) char[static_cast<size_t>(size_ * kStep)]);
    if (copy_ == nullptr) return PyErr_NoMemory() != nullptr;
    for (Py_ssize_t row = 0; row < size_; ++row) {
      std::memcpy(&copy_[row * kStep], rows_ + row * step, sizeof(T));
    }
    rows_ = copy_.get();
    return true;
  }

  const char* rows_ = nullptr;
  Py_ssize_t size_ = 0;
  std::unique_ptr<char[]> copy_;
};

// Columns of one batch have the same length. False with the error set where they don't.
inline bool equally_long(std::initializer_list<Py_ssize_t> sizes) {
  for (const Py_ssize_t size : sizes) {
    if (size == *sizes.begin()) continue;
    PyErr_SetString(PyExc_ValueError,
                    "columns of different lengths; a batch's columns are equally long");
    return false;
  }
  return true;
}

// A table: rows of one type, one after the other; rows that aren't const are written to.
template <typename Row>
class TableView : BufferView {
 public:
  bool take(PyObject* table, const char* name) {
    if (!take_buffer(table, std::is_const_v<Row> ? PyBUF_ND : PyBUF_ND | PyBUF_WRITABLE)) {
      return false;
    }
    if (view_.itemsize == static_cast<Py_ssize_t>(sizeof(Row))) return true;
    PyErr_Format(PyExc_TypeError, "%s has items of %zd bytes; pass items of %zu bytes", name,
                 view_.itemsize, sizeof(Row));
    return false;
  }

  // How many rows it has, in all dimensions.
  size_t size() const { return is_open_ ? static_cast<size_t>(view_.len) / sizeof(Row) : 0; }
  Row* begin() const { return static_cast<Row*>(view_.buf); }
  Row* end() const { return begin() + size(); }
  Row& operator[](size_t row) const { return begin()[row]; }
};

// The columns of a batch, as Python holds them.
struct BatchColumns {
#define RECFN_VIEW(type, name, ...) ColumnView<type> name;
  RECFN_EACH_COLUMN(RECFN_VIEW)
#undef RECFN_VIEW

  bool take(PyObject* batch) {
#define RECFN_TAKE(type, name, ...) name.take(batch, #name) &&
#define RECFN_SIZE(type, name, ...) name.size(),
    return RECFN_EACH_COLUMN(RECFN_TAKE) equally_long({RECFN_EACH_COLUMN(RECFN_SIZE)});
#undef RECFN_SIZE
#undef RECFN_TAKE
  }

  Py_ssize_t size() const { return event_id.size(); }
};

}  // namespace recfn
