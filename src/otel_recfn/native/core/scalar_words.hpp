// Numbers among an operator's inputs: as words beside the shapes (see shapes.hpp), and as PyTorch prints them.
//
//   63                  32 31     16 15      8 7        0
//   | small value          | words   | kind    | kScalar  |   words follow: the value, where it isn't small
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <locale>
#include <sstream>
#include <string>

namespace recfn {

enum ScalarKind : uint64_t { kUntold = 0, kBoolean = 1, kSmallInteger = 2, kInteger = 3, kReal = 4, kComplex = 5 };

constexpr uint32_t kMostScalars = 30;  // of a list; torch.profiler tells nothing of longer ones either
constexpr uint32_t kMostScalarWords = 2;

struct Scalar {
  ScalarKind kind = kUntold;
  uint32_t small = 0, size = 0;
  uint64_t words[kMostScalarWords] = {};
};

inline uint64_t bits_of(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline double real_of(uint64_t bits) {
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline Scalar integer_scalar(int64_t value) {
  const bool small = value == static_cast<int32_t>(value);
  if (small) return {kSmallInteger, static_cast<uint32_t>(value), 0, {}};
  return {kInteger, 0, 1, {static_cast<uint64_t>(value)}};
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

// `words` follow the tag.
inline std::string scalar_text(uint64_t tag, const uint64_t* words) {
  switch (tag >> 8 & 255) {
    case kBoolean:
      return tag >> 32 != 0 ? "True" : "False";
    case kSmallInteger:
      return std::to_string(static_cast<int32_t>(tag >> 32));
    case kInteger:
      return std::to_string(static_cast<int64_t>(words[0]));
    case kReal:
      return real_text(real_of(words[0]));
    case kComplex: {
      const double imaginary = real_of(words[1]);
      return real_text(real_of(words[0])) + (imaginary >= 0 ? "+" : "-") + real_text(std::abs(imaginary)) + "j";
    }
    default:
      return "";
  }
}

}  // namespace recfn
