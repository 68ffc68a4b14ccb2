// Counts and times of ranges by name; which names worked most, and which one waited longest.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

#include "model/events.hpp"
#include "model/numbers.hpp"

namespace recfn::stage {

// Ranges of one name.
struct NameTime {
  uint32_t name;
  int64_t count, self_ns;
  int64_t worked_ns;  // as much of their self time as they are known to have worked
};

// Sums by name.
class NameTimes {
 public:
  void clear() {
    for (const Name& one : names_) index_by_name_[one.time.name] = kNone;
    names_.clear();
  }

  void add(const NameTime& one) {
    if (one.name >= index_by_name_.size()) index_by_name_.resize(one.name + 1, kNone);
    uint32_t& index = index_by_name_[one.name];
    if (index == kNone) {
      index = static_cast<uint32_t>(names_.size());
      names_.push_back({one, index});
      return;
    }
    NameTime& found = names_[index].time;
    found.count += one.count;
    found.self_ns = wrapped_sum(found.self_ns, one.self_ns);
    found.worked_ns = wrapped_sum(found.worked_ns, one.worked_ns);
  }

  // Those that worked most, and behind them the one that waited longest, if it waited for most of
  // its time. Of several the one that came first. Nothing can be added then.
  template <typename Rows>
  void append_top(Rows& rows) {
    const auto end = names_.end();
    const auto last = names_.begin() + std::min(end - names_.begin(), kTopNames);
    std::partial_sort(names_.begin(), last, end, [](const Name& one, const Name& other) {
      return std::tie(other.time.worked_ns, one.first) < std::tie(one.time.worked_ns, other.first);
    });
    const auto append = [&rows](const Name& name) {
      rows.push_back({name.time.count, name.time.self_ns, name.time.worked_ns, name.time.name});
    };
    std::for_each(names_.begin(), last, append);
    const auto longest = std::max_element(names_.begin(), end, waits_less);
    if (longest != end && longest >= last && has_waited(*longest)) append(*longest);
  }

 private:
  static constexpr std::ptrdiff_t kTopNames = 3;
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Name {
    NameTime time;
    uint32_t first;  // its place in the order in which names came
  };

  static int64_t waited_ns(const Name& name) {
    return wrapped_difference(name.time.self_ns, name.time.worked_ns);
  }
  static bool waits_less(const Name& one, const Name& other) {
    const int64_t first_ns = waited_ns(one);
    const int64_t second_ns = waited_ns(other);
    return first_ns != second_ns ? first_ns < second_ns : one.first > other.first;
  }
  // Whether that is most of its time, and long enough to be seen.
  static bool has_waited(const Name& name) {
    return waited_ns(name) >= kMinWaitNs && waited_ns(name) > name.time.worked_ns;
  }

  std::vector<Name> names_;
  std::vector<uint32_t> index_by_name_;  // where each name stands there
};

}  // namespace recfn::stage
