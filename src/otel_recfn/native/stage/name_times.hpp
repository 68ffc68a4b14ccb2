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
  void clear() {
    for (const Name& one : names_) index_by_name_[one.name] = kNone;
    names_.clear();
  }

  void add(uint32_t name, int64_t count, int64_t self_ns) {
    if (name >= index_by_name_.size()) index_by_name_.resize(name + 1, kNone);
    if (index_by_name_[name] == kNone) {
      index_by_name_[name] = static_cast<uint32_t>(names_.size());
      names_.push_back({name, names_.size(), 0, 0});
    }
    Name& found = names_[index_by_name_[name]];
    found.count += count;
    found.self_ns = wrapped_sum(found.self_ns, self_ns);
  }

  // Those with the most time in themselves; of several the one that came first. Nothing can be
  // added then.
  template <typename Rows>
  void append_top(Rows& rows) {
    const auto end = names_.end();
    const auto last = names_.begin() + std::min(end - names_.begin(), kTopNames);
    std::partial_sort(names_.begin(), last, end, [](const Name& one, const Name& other) {
      return std::tie(other.self_ns, one.first) < std::tie(one.self_ns, other.first);
    });
    for (auto name = names_.begin(); name != last; ++name) {
      rows.push_back({name->count, name->self_ns, name->name});
    }
  }

 private:
  static constexpr std::ptrdiff_t kTopNames = 3;
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Name {
    uint32_t name;
    size_t first;
    int64_t count, self_ns;
  };

  std::vector<Name> names_;
  std::vector<uint32_t> index_by_name_;  // where each name stands there
};

}  // namespace recfn::stage
