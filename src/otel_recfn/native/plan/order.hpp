// Rows in the order of their ends: a drain reads one thread after the other, so there are few runs, and they are merged.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace recfn {

// Where each row stands, of equal numbers in the order in which they came. Numbers: `size()` and `[]`.
template <typename Numbers>
std::vector<int64_t> ascending_order(const Numbers& numbers) {
  const auto size = static_cast<size_t>(numbers.size());
  std::vector<int64_t> order(size), merged(size);
  std::iota(order.begin(), order.end(), 0);
  std::vector<size_t> ends;  // of the runs
  for (size_t at = 1; at <= size; ++at) {
    if (at == size || numbers[static_cast<int64_t>(at)] < numbers[static_cast<int64_t>(at) - 1]) ends.push_back(at);
  }
  const auto is_before = [&](int64_t one, int64_t other) { return numbers[one] < numbers[other]; };
  while (ends.size() > 1) {
    std::vector<size_t> next;
    for (size_t run = 0, begin = 0; run < ends.size(); run += 2) {
      const size_t middle = ends[run], end = run + 1 < ends.size() ? ends[run + 1] : middle;
      const auto at = [&](size_t place) { return order.begin() + static_cast<std::ptrdiff_t>(place); };
      std::merge(at(begin), at(middle), at(middle), at(end), merged.begin() + static_cast<std::ptrdiff_t>(begin), is_before);
      next.push_back(begin = end);
    }
    order.swap(merged);
    ends.swap(next);
  }
  return order;
}

}  // namespace recfn
