// A vector's items as a column for Python.
#pragma once
#include "columns/column.hpp"

#include <utility>
#include <vector>

namespace recfn {

template <typename T>
std::vector<char> as_bytes(const std::vector<T>& items) {
  const char* bytes = reinterpret_cast<const char*>(items.data());
  return std::vector<char>(bytes, bytes + items.size() * sizeof(T));
}

}  // namespace recfn
