// Columns in ascending order.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "columns/column_view.hpp"
#include "cpython/python.hpp"

namespace recfn {

// Where a value stands, or -1.
template <typename T>
Py_ssize_t place_in_ordered(const ColumnView<T>& ordered, T value) {
  Py_ssize_t first = 0, last = ordered.size();
  while (first < last) {
    const Py_ssize_t middle = (first + last) / 2;
    (ordered[middle] < value ? first : last) = ordered[middle] < value ? middle + 1 : middle;
  }
  return first < ordered.size() && ordered[first] == value ? first : -1;
}

// Where there is a mark, in ascending order.
inline std::vector<uint32_t> marked_places(const std::vector<uint8_t>& marks) {
  std::vector<uint32_t> places;
  for (size_t place = 0; place < marks.size(); ++place) {
    if (marks[place] != 0) places.push_back(static_cast<uint32_t>(place));
  }
  return places;
}

}  // namespace recfn
