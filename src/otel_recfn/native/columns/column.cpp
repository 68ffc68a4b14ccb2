#include "columns/column.hpp"

#include <new>
#include <utility>

namespace recfn {
namespace {

struct ColumnObject {
  PyObject_HEAD
  OwnedBytes bytes;
};

void column_dealloc(PyObject* self) {
  reinterpret_cast<ColumnObject*>(self)->bytes.~OwnedBytes();
  Py_TYPE(self)->tp_free(self);
}

int column_getbuffer(PyObject* self, Py_buffer* view, int flags) {
  const OwnedBytes& bytes = reinterpret_cast<ColumnObject*>(self)->bytes;
  static char nothing;
  void* first = bytes.size() == 0 ? &nothing : bytes.first();
  return PyBuffer_FillInfo(view, self, first, static_cast<Py_ssize_t>(bytes.size()), 1, flags);
}

PyBufferProcs column_buffer = {column_getbuffer, nullptr};

PyTypeObject column_type() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "otel_recfn._native.Column";
  type.tp_basicsize = sizeof(ColumnObject);
  type.tp_dealloc = column_dealloc;
  type.tp_as_buffer = &column_buffer;
  type.tp_flags = Py_TPFLAGS_DEFAULT;
  type.tp_doc = "Owns the bytes of one column; read them through the buffer protocol.";
  return type;
}

PyTypeObject ColumnType = column_type();

}  // namespace

int add_column_type(PyObject* module) { return PyModule_AddType(module, &ColumnType); }

PyObject* new_column(OwnedBytes&& bytes) {
  auto* column = PyObject_New(ColumnObject, &ColumnType);
  if (column != nullptr) new (&column->bytes) OwnedBytes(std::move(bytes));
  return reinterpret_cast<PyObject*>(column);
}

}  // namespace recfn
