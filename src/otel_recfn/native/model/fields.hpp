// The members of structs that cross the border to Python, where they have the same names.
//
// Each such struct has `fields_of` beside it, which lists its members once: Python's tables and
// records (columns/fields.hpp) take their names from there.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace recfn {

struct Field {
  const char* name;
  size_t offset;
  const char* type;  // as numpy calls it
};

template <typename T>
constexpr const char* numpy_type() {
  static_assert(std::is_integral_v<T>);
  if constexpr (std::is_same_v<T, bool>) return "?";
  if constexpr (sizeof(T) == 1) return std::is_signed_v<T> ? "i1" : "u1";
  if constexpr (sizeof(T) == 4) return std::is_signed_v<T> ? "i4" : "u4";
  if constexpr (sizeof(T) == 8) return std::is_signed_v<T> ? "i8" : "u8";
}

#define RECFN_FIELD(Row, member) \
  ::recfn::Field { #member, offsetof(Row, member), ::recfn::numpy_type<decltype(Row::member)>() }

// Whether no member of a row is left out: what lies between two of them, or after the last one, is
// padding.
template <typename Row>
constexpr bool has_each_field() {
  size_t end = 0;
  for (const Field& field : fields_of(static_cast<const Row*>(nullptr))) {
    const size_t size = field.type[0] == '?' ? 1 : static_cast<size_t>(field.type[1] - '0');
    if (field.offset != (end + size - 1) / size * size) return false;
    end = field.offset + size;
  }
  return (end + alignof(Row) - 1) / alignof(Row) * alignof(Row) == sizeof(Row);
}

}  // namespace recfn
