// Python's side of OTLP: spans as bytes, in memory of their own.
#include "otlp/otlp_encoder.hpp"

#include "columns/column.hpp"
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

constexpr size_t kColumns = 2;  // those of SpanColumns

struct Encoded {
  std::vector<char> bytes, columns[kColumns];
};

template <typename T>
T* sized(std::vector<char>& column, Py_ssize_t count) {
  column.resize(static_cast<size_t>(count) * sizeof(T));
  return reinterpret_cast<T*>(column.data());
}

// In one piece, because a program in Python gives the GIL back after milliseconds.
bool encode(const OtlpSpans& spans, Encoded& encoded) {
  return without_gil_if(spans.size() > kManySpans, [&] {
    const std::unique_ptr<char[]> scratch(new char[spans.most_bytes()]);
    const Py_ssize_t count = spans.size();
    auto& columns = encoded.columns;
    const size_t size = spans.encode(scratch.get(), {sized<int64_t>(columns[0], count), sized<int64_t>(columns[1], count)});
    encoded.bytes.assign(scratch.get(), scratch.get() + size);
  });
}

// Takes over the reference to `made`, which may be null. False where it is, or there is no place for it.
bool put(PyObject* tuple, Py_ssize_t place, PyObject* made) {
  return made != nullptr && PyTuple_SetItem(tuple, place, made) == 0;
}

PyObject* as_columns(Encoded&& encoded) {
  PyObject* all = PyTuple_New(1 + kColumns);
  if (all == nullptr) return nullptr;
  bool good = put(all, 0, recfn::new_column(std::move(encoded.bytes)));
  for (size_t at = 0; good && at < kColumns; ++at) {
    good = put(all, static_cast<Py_ssize_t>(at) + 1, recfn::new_column(std::move(encoded.columns[at])));
  }
  if (!good) Py_CLEAR(all);
  return all;
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
    return encode(spans, encoded) ? as_columns(std::move(encoded)) : nullptr;
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
     "encode_otlp_spans(batch, columns, above, key, maker, told) -> (bytes, ends, places)\n\n"
     "The spans of a plan's columns as fields of ScopeSpans, and of each where it ends and above * tracks + track, both as\n"
     "int64: objects with the buffer protocol."},
    {"join_bytes", join_bytes, METH_O,
     "join_bytes(parts) -> bytes\n\nOf a list of objects with the buffer protocol, copied without the GIL."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int recfn::add_otlp_encoder(PyObject* module) { return PyModule_AddFunctions(module, functions); }
