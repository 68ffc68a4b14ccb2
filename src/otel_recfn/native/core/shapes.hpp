// Shapes, dtypes and numbers of an operator's inputs, from the observer's words to the store's JSON
// texts.
//
// A word list: for every input one tag word, then its dims, or its value.
//
//   63                  32 31     16 15      8 7        0
//   | 0                    | words   | which    | kind   |   then the words: a tensor's dims, an
//                                                            int64 each, or a number's value
//
// kind: kTensor (which: its dtype), kScalar (which: ScalarKind), kOther, kListBegin and kListEnd
// around the tensors of a list, kScalarsBegin and kListEnd around its numbers.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <locale>
#include <sstream>
#include <string>
#include <utility>

namespace recfn {

enum ScalarKind : uint64_t { kUntold, kBoolean, kInteger, kReal, kComplex };

// Of a list; torch.profiler tells nothing of longer ones either.
constexpr uint32_t kMaxScalars = 30;
constexpr uint32_t kMaxScalarWords = 2;

// A number, as `size` words.
struct Scalar {
  ScalarKind kind = kUntold;
  uint32_t size = 0;
  uint64_t words[kMaxScalarWords] = {};
};

inline uint64_t as_bits(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline double as_real(uint64_t bits) {
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

constexpr double kTwoTo63 = 9'223'372'036'854'775'808.0;

// Whole numbers that 64 bits hold end with a point. The program's locale changes nothing.
inline std::string real_text(double value) {
  std::ostringstream text;
  text.imbue(std::locale::classic());
  if (value >= -kTwoTo63 && value < kTwoTo63 && value == std::trunc(value)) {
    text << static_cast<int64_t>(value) << '.';
  } else {
    text.precision(std::numeric_limits<double>::max_digits10);
    text << value;
  }
  return text.str();
}

// As PyTorch prints it. `words` follow the tag.
inline std::string scalar_text(uint64_t tag, const uint64_t* words) {
  switch (tag >> 8 & 255) {
    case kBoolean:
      return words[0] != 0 ? "True" : "False";
    case kInteger:
      return std::to_string(static_cast<int64_t>(words[0]));
    case kReal:
      return real_text(as_real(words[0]));
    case kComplex: {
      const double imaginary = as_real(words[1]);
      return real_text(as_real(words[0])) + (imaginary >= 0 ? "+" : "-") +
             real_text(std::abs(imaginary)) + "j";
    }
    default:
      return "";
  }
}

enum ShapeKind : uint64_t {
  kTensor = 1,
  kScalar = 2,
  kOther = 3,
  kListBegin = 4,
  kListEnd = 5,
  kTruncated = 6,
  kScalarsBegin = 7,
};

inline uint64_t shape_tag(ShapeKind kind, uint64_t dtype, uint64_t dims) {
  return kind | dtype << 8 | dims << 16;
}

// c10::ScalarType's numbers, which PyTorch keeps stable because it serializes them, to torch's
// dtype names.
inline const char* dtype_name(uint64_t dtype) {
  static const char* const names[] = {"uint8",           "int8",
                                      "int16",           "int32",
                                      "int64",           "float16",
                                      "float32",         "float64",
                                      "complex32",       "complex64",
                                      "complex128",      "bool",
                                      "qint8",           "quint8",
                                      "qint32",          "bfloat16",
                                      "quint4x2",        "quint2x4",
                                      "bits1x8",         "bits2x4",
                                      "bits4x2",         "bits8",
                                      "bits16",          "float8_e5m2",
                                      "float8_e4m3fn",   "float8_e5m2fnuz",
                                      "float8_e4m3fnuz", "uint16",
                                      "uint32",          "uint64"};
  return dtype < sizeof names / sizeof *names ? names[dtype] : "other";
}

struct ShapeText {
  std::string shapes, dtypes, concrete;
};

class ShapeReader {
 public:
  ShapeReader(const uint64_t* words, uint32_t count) : next_(words), end_(words + count) {}

  ShapeText text() {
    while (next_ < end_) read_input(*next_++);
    return {std::move(text_.shapes) + "]", std::move(text_.dtypes) + "]",
            std::move(text_.concrete) + "]"};
  }

 private:
  void read_input(uint64_t tag) {
    text_.concrete += (text_.concrete.size() > 1 ? ",\"" : "\"") + concrete_text(tag) + '"';
    separate();
    if ((tag & 255) != kListBegin) return add_shape(tag);
    add_to_both('[');
    for (first_ = true; !at_list_end(); add_shape(*next_++)) separate();
    add_to_both(']');
    first_ = false;
  }

  // The value of an input that is a number, or a list of them, whose words follow.
  std::string concrete_text(uint64_t tag) {
    switch (tag & 255) {
      case kScalarsBegin:
        return numbers();
      case kScalar:
        return number(tag);
      case kTruncated:
        return "...";
      default:
        return "";
    }
  }

  // Whether the list's end is next, which is passed over.
  bool at_list_end() {
    if (next_ < end_ && (*next_ & 255) != kListEnd) return false;
    if (next_ < end_) ++next_;
    return true;
  }

  // Its dims follow, where it is a tensor's.
  void add_shape(uint64_t tag) {
    const uint64_t kind = tag & 255;
    const uint64_t dims = kind == kTensor ? tag >> 16 & 0xFFFF : 0;
    text_.shapes += '[';
    for (uint64_t dim = 0; dim < dims && next_ < end_; ++dim) {
      if (dim != 0) text_.shapes += ',';
      text_.shapes += std::to_string(static_cast<int64_t>(*next_++));
    }
    text_.shapes += ']';
    text_.dtypes += '"';
    text_.dtypes += dtype_text(tag);
    text_.dtypes += '"';
  }

  static const char* dtype_text(uint64_t tag) {
    switch (tag & 255) {
      case kTensor:
        return dtype_name(tag >> 8 & 255);
      case kScalar:
        return "Scalar";
      case kTruncated:
        return "...";
      default:
        return "";
    }
  }

  std::string number(uint64_t tag) {
    const uint64_t* words = next_;
    next_ += tag >> 16 & 0xFFFF;
    return next_ <= end_ ? scalar_text(tag, words) : "";
  }

  // Nothing where one of them is no plain number.
  std::string numbers() {
    std::string list = "[";
    bool is_complete = true;
    while (!at_list_end()) {
      const std::string one = number(*next_++);
      is_complete = is_complete && !one.empty();
      list += (list.size() > 1 ? ", " : "") + one;
    }
    return is_complete ? list + "]" : "";
  }

  void separate() {
    if (!first_) add_to_both(',');
    first_ = false;
  }

  void add_to_both(char character) {
    text_.shapes += character;
    text_.dtypes += character;
  }

  const uint64_t* next_;
  const uint64_t* end_;
  bool first_ = true;
  ShapeText text_{"[", "[", "["};
};

inline ShapeText shape_text(const uint64_t* words, uint32_t count) {
  return ShapeReader(words, count).text();
}

}  // namespace recfn
