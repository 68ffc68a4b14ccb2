// The tree of calls of a unit that took more ranges than it may have spans: repeated siblings of
// one name are one sum, and what lies in them likewise. A range is a span of its own where it is
// alone on its path of names, or stands out among the others. `tests/models/folding.py` does the
// same, to be read.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "model/numbers.hpp"
#include "stage/folded_tree.hpp"
#include "stage/kept_ranges.hpp"

namespace recfn::stage {

class CallPaths {
 public:
  // Keeps more of the ranges of a unit that took so long, in which those are kept that failed or
  // were shown. `tree_of`: what was folded into the range at a place before; `unit`: directly into
  // the unit. Returns what paths with a span took at least.
  template <typename TreeOf>
  int64_t choose(const Ranges& held, Comparison& all, int64_t budget, int64_t duration_ns,
                 const FoldedTree& unit, TreeOf tree_of) {
    const int64_t share_ns = duration_ns / std::clamp(budget, kFewestShares, kLeastShare);
    number(held, all, unit, tree_of);
    for (int round = 0;
         round < kMostRounds && pull_out(held, all, budget / 2, kSharesOfOne * share_ns); ++round) {
      number(held, all, unit, tree_of);
    }
    note_times(duration_ns / kLeastShare);
    const int64_t long_ones = std::count_if(times_.begin(), times_.end(),
                                            [=](int64_t time_ns) { return time_ns >= share_ns; });
    const int64_t left = std::max<int64_t>(0, budget - kept(all));
    const int64_t least_ns = least_of(std::min(left, std::max(long_ones, budget / kPartOfBudget)),
                                      duration_ns / kLeastShare);
    keep_single(held, all, least_ns);
    all.list_kept();
    return least_ns;
  }

 private:
  // Of names, below a path or a range that is kept: `apart` are the ranges that are.
  struct CallPath {
    uint32_t above, name, shown, home;
    bool apart, in_compilation;
    int64_t count, total_ns;
  };
  static constexpr uint32_t kUnit = PathTable::kNone;

  // What is around a range comes after it. What lies in a backward node lies on the path of the
  // range around that.
  template <typename TreeOf>
  void number(const Ranges& held, const Comparison& all, const FoldedTree& unit, TreeOf tree_of) {
    paths_.assign(1, {kUnit, kNoName, kNoName, kUnit, false, false, 0, 0}), table_.clear();
    of_.resize(held.size());
    add_all(kUnit, unit);
    for (auto place = static_cast<uint32_t>(held.size()); place-- > 0;) {
      const Range& one = held[place];
      const uint32_t above = all.above(place),
                     around = above < Comparison::kNotHere ? paths_[of_[above]].home : kUnit;
      of_[place] = all.is_kept(place) ? make(around, one.name, one.shown, true)
                                      : find(around, one.name, one.shown);
      add(of_[place], 1, one.duration_ns);
      paths_[of_[place]].in_compilation |= (one.flags & kInCompilation) != 0;
      if (const FoldedTree* const tree = tree_of(place)) add_all(of_[place], *tree);
    }
  }

  void add_all(uint32_t above, const FoldedTree& tree) {
    if (tree.root != nullptr) waiting_.push_back({above, tree.root});
    while (!waiting_.empty()) {
      const auto [around, root] = waiting_.back();
      waiting_.pop_back();
      for (const Path* each = root->first_below; each != nullptr; each = each->next) {
        const uint32_t path = find(paths_[around].home, each->name, each->shown);
        add(path, each->count, each->total_ns);
        paths_[path].in_compilation |= each->in_compilation;
        waiting_.push_back({path, each});
      }
    }
  }
  void add(uint32_t path, int64_t count, int64_t total_ns) {
    paths_[path].count += count,
        paths_[path].total_ns = wrapped_sum(paths_[path].total_ns, total_ns);
  }

  uint32_t find(uint32_t above, uint32_t name, uint32_t shown) {
    const uint32_t known = table_.find(above, name);
    if (known != PathTable::kNone) return known;
    const uint32_t path = make(above, name, shown, false);
    table_.insert(above, name, path);
    return path;
  }
  uint32_t make(uint32_t above, uint32_t name, uint32_t shown, bool apart) {
    const auto path = static_cast<uint32_t>(paths_.size());
    paths_.push_back(
        {above, name, shown, is_node_of(paths_[above], name) ? above : path, apart, false, 0, 0});
    return path;
  }

  // Ranges that stand out, with all that they lie in, but for what lies in one that was found in
  // this round: among what else lies in that it may be usual. Whether there are any.
  bool pull_out(const Ranges& held, Comparison& all, int64_t most, int64_t least_ns) {
    int64_t left = most - kept(all);
    bool any = false;
    is_in_one_.assign(held.size(), false);
    for (auto place = static_cast<uint32_t>(held.size()); place-- > 0;) {
      const uint32_t above = all.above(place);
      is_in_one_[place] = above < Comparison::kNotHere && is_in_one_[above];
      if (is_in_one_[place] || all.is_kept(place)) continue;
      if (!stands_out(held[place], paths_[of_[place]], least_ns) || left < lies_in(all, place))
        continue;
      any = true, is_in_one_[place] = true;
      for (uint32_t each = place; each < Comparison::kNotHere && !all.is_kept(each);
           each = all.above(each))
        all.keep(each), --left;
    }
    return any;
  }
  static bool stands_out(const Range& one, const CallPath& path, int64_t least_ns) {
    if (one.duration_ns < least_ns || path.count < 2 || (one.flags & kInCompilation) != 0)
      return false;
    return one.duration_ns / kStandsOut >=
           wrapped_difference(path.total_ns, one.duration_ns) / (path.count - 1);
  }
  // How many that aren't kept, with itself.
  static int64_t lies_in(const Comparison& all, uint32_t place) {
    int64_t count = 0;
    for (uint32_t each = place; each < Comparison::kNotHere && !all.is_kept(each);
         each = all.above(each))
      ++count;
    return count;
  }
  static int64_t kept(const Comparison& all) {
    int64_t count = 0;
    for (size_t place = 0; place < all.size(); ++place) count += all.is_kept(place) ? 1 : 0;
    return count;
  }

  void note_times(int64_t least_ns) {
    times_.clear();
    for (uint32_t path = 1; path < paths_.size(); ++path) {
      const CallPath& one = paths_[path];
      const bool may_be_shown = !one.apart && one.home == path && !one.in_compilation;
      if (may_be_shown && one.total_ns >= least_ns) times_.push_back(one.total_ns);
    }
  }

  // What paths took at least, where so many have a span.
  int64_t least_of(int64_t spans, int64_t least_ns) {
    if (static_cast<int64_t>(times_.size()) <= spans) return least_ns;
    const auto first_left_out = times_.begin() + static_cast<std::ptrdiff_t>(spans);
    std::nth_element(times_.begin(), first_left_out, times_.end(), std::greater<>());
    return *first_left_out + 1;
  }

  // What is alone on its path, and lies directly in the unit or in what is kept, too.
  void keep_single(const Ranges& held, Comparison& all, int64_t least_ns) {
    for (auto place = static_cast<uint32_t>(held.size()); place-- > 0;) {
      const uint32_t above = all.above(place);
      if (above < Comparison::kNotHere && !all.is_kept(above)) continue;
      const bool has_span = (held[place].flags & kInCompilation) == 0;
      if (has_span && paths_[of_[place]].count == 1 && held[place].duration_ns >= least_ns)
        all.keep(place);
    }
  }

  std::vector<CallPath> paths_;
  PathTable table_;
  std::vector<std::pair<uint32_t, const Path*>>
      waiting_;                  // to be added: below which path, and what it was folded into
  std::vector<uint32_t> of_;     // the path of each range
  std::vector<char> is_in_one_;  // that was pulled out in this round, or is one
  std::vector<int64_t> times_;
};

}  // namespace recfn::stage
