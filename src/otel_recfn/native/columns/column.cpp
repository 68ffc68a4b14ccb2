#include "columns/column.hpp"

#include <new>
#include <utility>

namespace recfn {
namespace {

struct ColumnObject {
  PyObject_HEAD
  OwnedVector items;
};

void column_dealloc(PyObject* self) {
  reinterpret_cast<ColumnObject*>(self)->items.~OwnedVector();
  Py_TYPE(self)->tp_free(self);
}

int column_getbuffer(PyObject* self, Py_buffer* view, int flags) {
  const OwnedVector& items = reinterpret_cast<ColumnObject*>(self)->items;
  static char nothing;
  void* bytes = items.bytes() == 0 ? &nothing : items.data();
  return PyBuffer_FillInfo(view, self, bytes, static_cast<Py_ssize_t>(items.bytes()), 1, flags);
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

int add_column_type(PyObject* module) {
  if (PyType_Ready(&ColumnType) < 0) return -1;
  Py_INCREF(&ColumnType);
  return PyModule_AddObject(module, "Column", reinterpret_cast<PyObject*>(&ColumnType));
}

PyObject* new_column(OwnedVector&& items) {
  auto* column = PyObject_New(ColumnObject, &ColumnType);
  if (column != nullptr) new (&column->items) OwnedVector(std::move(items));
  return reinterpret_cast<PyObject*>(column);
}

}  // namespace recfn
