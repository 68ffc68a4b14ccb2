// Shapes and dtypes of an operator's inputs, from the observer's words to the store's JSON text.
//
// A word list: for every input one tag word, then its dims.
//
//   63                  32 31     16 15      8 7        0
//   | 0                    | dims    | dtype    | kind   |   dims words follow, one int64 each
//
// kind: kTensor, kScalar (no dims), kOther (no dims), kListBegin and kListEnd around the tensors of a list.
#pragma once
#include <cstdint>
#include <string>

namespace recfn {

enum ShapeKind : uint64_t { kTensor = 1, kScalar = 2, kOther = 3, kListBegin = 4, kListEnd = 5, kTruncated = 6 };

inline uint64_t shape_tag(ShapeKind kind, uint64_t dtype, uint64_t dims) { return kind | dtype << 8 | dims << 16; }

// c10::ScalarType's numbers, which PyTorch keeps stable because it serializes them, to torch's dtype names.
inline const char* dtype_name(uint64_t dtype) {
  static const char* const names[] = {
      "uint8",      "int8",       "int16",      "int32",     "int64",          "float16",         "float32",     "float64",
      "complex32",  "complex64",  "complex128", "bool",      "qint8",          "quint8",          "qint32",      "bfloat16",
      "quint4x2",   "quint2x4",   "bits1x8",    "bits2x4",   "bits4x2",        "bits8",           "bits16",      "float8_e5m2",
      "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz", "uint16", "uint32", "uint64"};
  return dtype < sizeof names / sizeof *names ? names[dtype] : "other";
}

struct ShapeText {
  std::string shapes, dtypes;
};

inline ShapeText shape_text(const uint64_t* words, uint32_t count) {
  ShapeText text{"[", "["};
  bool first = true;
  const auto separate = [&](std::string& into) {
    if (!first) into += ',';
  };
  for (uint32_t at = 0; at < count;) {
    const uint64_t tag = words[at++];
    const uint64_t kind = tag & 255, dtype = tag >> 8 & 255, dims = tag >> 16 & 0xFFFF;
    if (kind == kListEnd) {
      text.shapes += ']', text.dtypes += ']';
      first = false;
      continue;
    }
    separate(text.shapes), separate(text.dtypes);
    first = false;
    if (kind == kListBegin) {
      text.shapes += '[', text.dtypes += '[';
      first = true;
      continue;
    }
    text.shapes += '[';
    for (uint64_t dim = 0; dim < dims && at < count; ++dim) {
      if (dim != 0) text.shapes += ',';
      text.shapes += std::to_string(static_cast<int64_t>(words[at++]));
    }
    text.shapes += ']';
    text.dtypes += '"';
    text.dtypes += kind == kTensor ? dtype_name(dtype) : kind == kScalar ? "Scalar" : kind == kTruncated ? "..." : "";
    text.dtypes += '"';
  }
  return {text.shapes + "]", text.dtypes + "]"};
}

}  // namespace recfn
