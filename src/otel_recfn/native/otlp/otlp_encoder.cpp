// Python's side of OTLP: spans as bytes in memory that the caller keeps between calls, because fresh memory would cost as much as
// the encoding.
#include "otlp/otlp_encoder.hpp"

#include "otlp/otlp_spans.hpp"

#include <new>

namespace {

using recfn::OtlpSpans;

bool scan(OtlpSpans& spans) {
  bool good = false, enough = true;
  Py_BEGIN_ALLOW_THREADS
  try {
    good = spans.scan();
  } catch (const std::bad_alloc&) {
    enough = false;
  }
  Py_END_ALLOW_THREADS
  if (!enough) {
    PyErr_NoMemory();
  } else if (!good) {
    PyErr_Format(PyExc_IndexError, "row %zd names what its batch or plan has not", spans.bad_row());
  }
  return good;
}

// The buffers are held so that nobody else resizes them meanwhile.
PyObject* fill(const OtlpSpans& spans, PyObject* memory, PyObject* ends) {
  size_t most = 0;
  Py_BEGIN_ALLOW_THREADS
  most = spans.most_bytes();
  Py_END_ALLOW_THREADS
  const auto needed = static_cast<Py_ssize_t>(most);
  if (PyByteArray_GET_SIZE(memory) < needed && PyByteArray_Resize(memory, needed) < 0) return nullptr;
  Py_buffer bytes, places;
  if (PyObject_GetBuffer(ends, &places, PyBUF_WRITABLE) < 0) return nullptr;
  if (places.len != spans.size() * static_cast<Py_ssize_t>(sizeof(int64_t))) {
    PyErr_SetString(PyExc_ValueError, "no room for the end of each span; pass one int64 a span");
    PyBuffer_Release(&places);
    return nullptr;
  }
  if (PyObject_GetBuffer(memory, &bytes, PyBUF_WRITABLE) < 0) {
    PyBuffer_Release(&places);
    return nullptr;
  }
  size_t size = 0;
  Py_BEGIN_ALLOW_THREADS
  size = spans.encode(static_cast<char*>(bytes.buf), static_cast<int64_t*>(places.buf));
  Py_END_ALLOW_THREADS
  PyBuffer_Release(&bytes);
  PyBuffer_Release(&places);
  return PyLong_FromSize_t(size);
}

PyObject* encode_spans(PyObject*, PyObject* arguments) {
  PyObject *batch, *columns, *above, *maker, *told, *memory, *ends;
  if (!PyArg_ParseTuple(arguments, "OO!O!OO!O!O", &batch, &PyTuple_Type, &columns, &PyList_Type, &above, &maker, &PyDict_Type,
                        &told, &PyByteArray_Type, &memory, &ends)) {
    return nullptr;
  }
  try {
    OtlpSpans spans;
    if (!spans.read(batch, columns, above) || !scan(spans) || !spans.share(batch, maker, told)) return nullptr;
    return fill(spans, memory, ends);
  } catch (const std::bad_alloc&) {  // not without the GIL: encoding takes no memory
    return PyErr_NoMemory();
  }
}

PyMethodDef functions[] = {
    {"encode_otlp_spans", encode_spans, METH_VARARGS,
     "encode_otlp_spans(batch, columns, above, maker, told, memory, ends) -> int\n\n"
     "The spans of a plan's columns as fields of ScopeSpans: so many bytes at the start of the bytearray, which grows as needed."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int recfn::add_otlp_encoder(PyObject* module) { return PyModule_AddFunctions(module, functions); }
