// Python's side of OTLP: spans as bytes, in memory of their own.
#include "cpython/parts.hpp"

#include "columns/column_tuple.hpp"
#include "otlp/joined_bytes.hpp"
#include "cpython/gil.hpp"
#include "cpython/guarded.hpp"
#include "otlp/otlp_spans.hpp"

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace {

using recfn::guarded;
using recfn::OtlpSpans;
using recfn::without_gil_if;

constexpr Py_ssize_t kManySpans = 500;  // which take some 0.1 ms

bool scan(OtlpSpans& spans) {
  bool good = false;
  if (!without_gil_if(spans.size() > kManySpans, [&] { good = spans.scan(); })) return false;
  if (!good) PyErr_Format(PyExc_IndexError, "row %zd names what its batch or plan has not", spans.bad_row());
  return good;
}

struct Encoded {
  std::vector<char> bytes;
  std::vector<int64_t> ends;
};

// In one piece, because a program in Python gives the GIL back after milliseconds.
bool encode(const OtlpSpans& spans, Encoded& encoded) {
  return without_gil_if(spans.size() > kManySpans, [&] {
    const std::unique_ptr<char[]> scratch(new char[spans.most_bytes()]);
    encoded.ends.resize(static_cast<size_t>(spans.size()));
    const size_t size = spans.encode(scratch.get(), encoded.ends.data());
    encoded.bytes.assign(scratch.get(), scratch.get() + size);
  });
}

PyObject* encode_spans(PyObject*, PyObject* arguments) {
  PyObject *batch, *columns, *above, *maker, *told;
  unsigned long long key;
  if (!PyArg_ParseTuple(arguments, "OO!O!KOO!", &batch, &PyTuple_Type, &columns, &PyList_Type, &above, &key, &maker,
                        &PyDict_Type, &told)) {
    return nullptr;
  }
  return guarded([&]() -> PyObject* {
    OtlpSpans spans;
    Encoded encoded;
    if (!spans.read(batch, columns, above, key) || !scan(spans) || !spans.share(batch, maker, told)) return nullptr;
    return encode(spans, encoded) ? recfn::column_tuple(encoded.bytes, encoded.ends) : nullptr;
  });
}

PyObject* join_bytes(PyObject*, PyObject* parts) {
  if (!PyList_Check(parts)) {
    PyErr_SetString(PyExc_TypeError, "parts that are no list; pass a list of objects with the buffer protocol");
    return nullptr;
  }
  return guarded([&] { return recfn::joined_bytes(parts); });
}

PyMethodDef functions[] = {
    {"encode_otlp_spans", encode_spans, METH_VARARGS,
     "encode_otlp_spans(batch, columns, above, key, maker, told) -> (bytes, ends)\n\n"
     "The spans of a plan's columns as fields of ScopeSpans, and of each where it ends, as int64: objects with the buffer\n"
     "protocol."},
    {"join_bytes", join_bytes, METH_O,
     "join_bytes(parts) -> bytes\n\nOf a list of objects with the buffer protocol, copied without the GIL."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int recfn::add_otlp_encoder(PyObject* module) { return PyModule_AddFunctions(module, functions); }
