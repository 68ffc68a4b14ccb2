// Python's side of OTLP: spans as bytes, in memory of their own.
#include "columns/column.hpp"
#include "cpython/python.hpp"
#include "otlp/otlp_spans.hpp"

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace recfn {
namespace {

constexpr Py_ssize_t kManySpans = 500;  // which take some 0.1 ms

// With the GIL: a look at 30,000 spans takes 0.2 ms, and whoever gave it back may wait 5 ms for it.
bool scan(OtlpSpans& spans) {
  const bool good = spans.scan();
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
    return encode(spans, encoded) ? column_tuple(encoded.bytes, encoded.ends) : nullptr;
  });
}

PyMethodDef functions[] = {
    {"encode_otlp_spans", encode_spans, METH_VARARGS,
     "encode_otlp_spans(batch, columns, above, key, maker, told) -> (bytes, ends)\n\n"
     "The spans of a plan's columns as fields of ScopeSpans, and of each where it ends, as int64: objects with the buffer\n"
     "protocol."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int add_otlp_encoder(PyObject* module) { return PyModule_AddFunctions(module, functions); }

}  // namespace recfn
