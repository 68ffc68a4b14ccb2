// The tree of calls of a unit that took more ranges than it may have spans: repeated siblings of
// one name are one sum, and what lies in them likewise. A range is a span of its own where it is
// alone on its path of names, or stands out among the others.
//
//     ranges               paths of names       spans
//     Net                  Net      1 x         Net               alone on its path
//     ├─ layer    1 ms     ├─ layer 3 x         ├─ layer (folded) 2 x, 2 ms
//     ├─ layer    1 ms     │                    │
//     └─ layer    9 ms     │                    └─ layer 9 ms     stands out: nine times the others
//
// Ranges that stand out are pulled out first, a round for each depth, as a path's mean changes when
// one is. Then it is known how long a path must be to have a span, and what is alone on a path that
// is long enough becomes one.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "model/numbers.hpp"
#include "stage/folded_tree.hpp"
#include "stage/selected_ranges.hpp"

namespace recfn::stage {

class CallPaths {
 public:
  // Keeps more of the ranges of a unit that took so long, in which those are kept that failed or
  // were shown. `folded_into`: what was folded into the range at a place before; `unit`: directly
  // into the unit. Returns what paths with a span took at least.
  template <typename FoldedInto>
  int64_t choose(const Ranges& ranges, Comparison& all, int64_t budget, int64_t duration_ns,
                 const FoldedTree& unit, FoldedInto folded_into) {
    const int64_t share_ns = duration_ns / std::clamp(budget, kFewestShares, kMinShare);
    number(ranges, all, unit, folded_into);
    for (int round = 0;
         round < kMaxRounds && pull_out(ranges, all, budget / 2, kOutlierShares * share_ns);
         ++round) {
      number(ranges, all, unit, folded_into);
    }
    note_times(duration_ns / kMinShare);
    const int64_t long_ones = std::count_if(times_.begin(), times_.end(),
                                            [=](int64_t time_ns) { return time_ns >= share_ns; });
    const int64_t remaining = std::max<int64_t>(0, budget - selected(all));
    const int64_t min_ns = shortest_with_span(
        std::min(remaining, std::max(long_ones, budget / kPartOfBudget)), duration_ns / kMinShare);
    select_single(ranges, all, min_ns);
    all.list_selected();
    return min_ns;
  }

 private:
  // Of names, below a path or a range that is kept: `apart` are the ranges that are.
  struct CallPath {
    uint64_t key;  // as of a range
    uint32_t parent;
    bool apart, in_compilation, is_operator;
    int64_t count, total_ns;
  };
  static constexpr uint32_t kUnit = PathTable::kNone;

  // What is around a range comes after it.
  template <typename FoldedInto>
  void number(const Ranges& ranges, const Comparison& all, const FoldedTree& unit,
              FoldedInto folded_into) {
    paths_.assign(1, {0, kUnit, false, false, false, 0, 0});
    table_.clear();
    range_path_.resize(ranges.size());
    add_all(kUnit, unit);
    for (auto index = static_cast<uint32_t>(ranges.size()); index-- > 0;) {
      const Range& one = ranges[index];
      const uint32_t parent = all.parent(index);
      const uint32_t enclosing = parent < Comparison::kNotHere ? range_path_[parent] : kUnit;
      const uint64_t key = one.path_key();
      range_path_[index] = all.is_selected(index) ? make(enclosing, key, one.is_operator, true)
                                                  : find(enclosing, key, one.is_operator);
      add(range_path_[index], 1, one.duration_ns);
      paths_[range_path_[index]].in_compilation |= (one.flags & kInCompilation) != 0;
      if (const FoldedTree* const tree = folded_into(index)) add_all(range_path_[index], *tree);
    }
  }

  void add_all(uint32_t parent, const FoldedTree& tree) {
    if (tree.root != nullptr) waiting_.push_back({parent, tree.root});
    while (!waiting_.empty()) {
      const auto [enclosing, root] = waiting_.back();
      waiting_.pop_back();
      for (const Path* each = root->first_child; each != nullptr; each = each->next) {
        const uint32_t path = find(enclosing, each->key, each->is_operator);
        add(path, each->count, each->total_ns);
        paths_[path].in_compilation |= each->in_compilation;
        waiting_.push_back({path, each});
      }
    }
  }
  void add(uint32_t path, int64_t count, int64_t total_ns) {
    paths_[path].count += count;
    paths_[path].total_ns = wrapped_sum(paths_[path].total_ns, total_ns);
  }

  uint32_t find(uint32_t parent, uint64_t key, bool is_operator) {
    const uint32_t known = table_.find(parent, key);
    if (known != PathTable::kNone) {
      paths_[known].is_operator &= is_operator;
      return known;
    }
    const uint32_t path = make(parent, key, is_operator, false);
    table_.insert(parent, key, path);
    return path;
  }
  uint32_t make(uint32_t parent, uint64_t key, bool is_operator, bool apart) {
    paths_.push_back({key, parent, apart, false, is_operator, 0, 0});
    return static_cast<uint32_t>(paths_.size() - 1);
  }

  // Ranges that stand out, with all that they lie in, but for what lies in one that was found in
  // this round: among what else lies in that it may be usual. Whether there are any.
  bool pull_out(const Ranges& ranges, Comparison& all, int64_t limit, int64_t min_ns) {
    int64_t remaining = limit - selected(all);
    bool any = false;
    is_in_one_.assign(ranges.size(), false);
    for (auto index = static_cast<uint32_t>(ranges.size()); index-- > 0;) {
      const uint32_t parent = all.parent(index);
      is_in_one_[index] = parent < Comparison::kNotHere && is_in_one_[parent];
      if (is_in_one_[index] || all.is_selected(index)) continue;
      if (!is_outlier(ranges[index], paths_[range_path_[index]], min_ns) ||
          remaining < enclosing_id(all, index)) {
        continue;
      }
      any = true;
      is_in_one_[index] = true;
      for (uint32_t each = index; each < Comparison::kNotHere && !all.is_selected(each);
           each = all.parent(each)) {
        all.select(each);
        --remaining;
      }
    }
    return any;
  }
  static bool is_outlier(const Range& one, const CallPath& path, int64_t min_ns) {
    if (one.duration_ns < min_ns || path.count < 2 || (one.flags & kInCompilation) != 0) {
      return false;
    }
    return one.duration_ns / kOutlierFactor >=
           wrapped_difference(path.total_ns, one.duration_ns) / (path.count - 1);
  }
  // How many that aren't kept, with itself.
  static int64_t enclosing_id(const Comparison& all, uint32_t index) {
    int64_t count = 0;
    for (uint32_t each = index; each < Comparison::kNotHere && !all.is_selected(each);
         each = all.parent(each)) {
      ++count;
    }
    return count;
  }
  static int64_t selected(const Comparison& all) {
    int64_t count = 0;
    for (size_t index = 0; index < all.size(); ++index) count += all.is_selected(index) ? 1 : 0;
    return count;
  }

  void note_times(int64_t min_ns) {
    times_.clear();
    for (uint32_t path = 1; path < paths_.size(); ++path) {
      const CallPath& one = paths_[path];
      const bool may_have_span = !one.apart && !one.in_compilation;
      if (!may_have_span || one.total_ns < min_ns) continue;
      // Either it or the operator that only calls it has a span: of both that one counts.
      const CallPath& enclosing = paths_[one.parent];
      const bool enclosing_counts =
          !enclosing.apart && !enclosing.in_compilation && only_calls(enclosing, one);
      if (!enclosing_counts) times_.push_back(one.total_ns);
    }
  }

  // What paths took at least, where so many have a span.
  int64_t shortest_with_span(int64_t spans, int64_t min_ns) {
    if (static_cast<int64_t>(times_.size()) <= spans) return min_ns;
    const auto first_omitted = times_.begin() + static_cast<std::ptrdiff_t>(spans);
    std::nth_element(times_.begin(), first_omitted, times_.end(), std::greater<>());
    return *first_omitted + 1;
  }

  // What is alone on its path, and lies directly in the unit or in what is kept, too.
  void select_single(const Ranges& ranges, Comparison& all, int64_t min_ns) {
    for (auto index = static_cast<uint32_t>(ranges.size()); index-- > 0;) {
      const uint32_t parent = all.parent(index);
      if (parent < Comparison::kNotHere && !all.is_selected(parent)) continue;
      const bool has_span = (ranges[index].flags & kInCompilation) == 0;
      if (has_span && paths_[range_path_[index]].count == 1 &&
          ranges[index].duration_ns >= min_ns) {
        all.select(index);
      }
    }
  }

  std::vector<CallPath> paths_;
  PathTable table_;
  // To be added: below which path, and what it was folded into.
  std::vector<std::pair<uint32_t, const Path*>> waiting_;
  std::vector<uint32_t> range_path_;  // the path of each range
  std::vector<char> is_in_one_;       // that was pulled out in this round, or is one
  std::vector<int64_t> times_;
};

}  // namespace recfn::stage
