// Counts and times of ranges by name, and which names took most.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

#include "model/numbers.hpp"

namespace recfn::stage {

// Sums by name.
class NameTimes {
 public:
  void clear(size_t most) {
    names_.clear();
    size_t slots = 16;
    while (slots < 2 * most) slots *= 2;
    slots_.assign(slots, kNone);
  }

  // The next one, at most so many different ones after `clear`.
  void add(uint32_t name, int64_t count, int64_t self_ns) {
    const size_t mask = slots_.size() - 1;
    size_t at = (name * 0x9E3779B1u >> 8) & mask;
    while (slots_[at] != kNone && names_[slots_[at]].name != name) at = (at + 1) & mask;
    if (slots_[at] == kNone) {
      slots_[at] = static_cast<uint32_t>(names_.size());
      names_.push_back({name, names_.size(), 0, 0});
    }
    Name& found = names_[slots_[at]];
    found.count += count, found.self_ns = wrapped_sum(found.self_ns, self_ns);
  }

  // Those with the most time in themselves; of several the one that came first. Without those of which there are only parts.
  template <typename Rows>
  void append_top(Rows& rows) {
    names_.erase(std::remove_if(names_.begin(), names_.end(), [](const Name& one) { return one.count == 0; }), names_.end());
    const auto last = names_.begin() + static_cast<std::ptrdiff_t>(std::min(names_.size(), kTopNames));
    std::partial_sort(names_.begin(), last, names_.end(), [](const Name& one, const Name& other) {
      return std::tie(other.self_ns, one.first) < std::tie(one.self_ns, other.first);
    });
    for (auto name = names_.begin(); name != last; ++name) rows.push_back({name->count, name->self_ns, name->name});
  }

 private:
  static constexpr size_t kTopNames = 3;
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Name {
    uint32_t name;
    size_t first;
    int64_t count, self_ns;
  };

  std::vector<Name> names_;
  std::vector<uint32_t> slots_;  // where each stands there: a hash table
};

}  // namespace recfn::stage
