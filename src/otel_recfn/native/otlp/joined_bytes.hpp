// Bytes that are joined without the GIL: a request has megabytes of spans.
#pragma once
#include "cpython/python.hpp"

#include <cstring>
#include <vector>

namespace recfn {

// What the buffers of some objects have, held until it is gone, which is with the GIL.
class HeldBuffers {
 public:
  HeldBuffers() = default;
  HeldBuffers(const HeldBuffers&) = delete;
  HeldBuffers& operator=(const HeldBuffers&) = delete;
  ~HeldBuffers() {
    for (Py_buffer& view : views_) PyBuffer_Release(&view);
  }

  // Of each object of a list. False with an exception set.
  bool take(PyObject* objects) {
    views_.reserve(static_cast<size_t>(PyList_GET_SIZE(objects)));
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(objects); ++i) {
      Py_buffer view;
      if (PyObject_GetBuffer(PyList_GET_ITEM(objects, i), &view, PyBUF_SIMPLE) < 0) return false;
      views_.push_back(view);
      size_ += view.len;
    }
    return true;
  }
  Py_ssize_t size() const { return size_; }
  void copy_to(char* to) const {
    for (const Py_buffer& view : views_) {
      std::memcpy(to, view.buf, static_cast<size_t>(view.len));
      to += view.len;
    }
  }

 private:
  std::vector<Py_buffer> views_;
  Py_ssize_t size_ = 0;
};

inline PyObject* joined_bytes(PyObject* parts) {
  HeldBuffers buffers;
  if (!buffers.take(parts)) return nullptr;
  PyObject* bytes = PyBytes_FromStringAndSize(nullptr, buffers.size());
  if (bytes == nullptr) return nullptr;
  char* to = PyBytes_AS_STRING(bytes);
  Py_BEGIN_ALLOW_THREADS
  buffers.copy_to(to);
  Py_END_ALLOW_THREADS
  return bytes;
}

}  // namespace recfn
