// How long ranges worked by themselves, as far as their threads' CPU times say so.
//
// A thread's CPU time is read at the begins and ends of module calls, steps and outermost ranges of
// Python's, and not of operators. So it is known of a stretch: such a range without those in it
// whose CPU time is known, too, in the same thread.
//
//     Net             10 ms, worked 7 ms      a stretch: Net itself 2 ms, aten::view 1 ms;
//     ├─ Linear        7 ms, worked 6 ms      of 3 ms it worked 7 - 6 = 1 ms, so it waited 2 ms
//     │  └─ aten::mm   6 ms                   a stretch: Linear itself 1 ms, aten::mm 6 ms
//     └─ aten::view    1 ms
//
// A stretch waited for its time less its CPU time. Where in it isn't known, so this is assumed: it
// waited in its own range first, between the operators, where Python code sleeps, acquires locks
// and the GIL, and reads files; and for the rest in each operator by the same share of its time.
// What lies in no such range, or in another thread than the range around it, counts as worked.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/numbers.hpp"

namespace recfn::stage {

// A range, or the ranges of a path. Times in nanoseconds.
struct TimedWork {
  static constexpr int64_t kNone = -1;

  int64_t enclosing;  // the index of what it lies in, which comes before it; or none
  uint32_t thread;
  int64_t self_ns;
  int64_t cpu_time_ns;    // -1: not known
  int64_t worked_ns = 0;  // what is found
};

class WorkedTimes {
 public:
  // Finds how long each of them worked by itself.
  void find(std::vector<TimedWork>& all) {
    stretches_.clear();
    stretch_.assign(all.size(), kNoStretch);
    for (size_t index = 0; index < all.size(); ++index) add(all, index);
    for (size_t index = 0; index < all.size(); ++index) {
      TimedWork& one = all[index];
      one.worked_ns = one.self_ns;
      if (stretch_[index] == kNoStretch) continue;
      const Stretch& stretch = stretches_[stretch_[index]];
      const int64_t waited_ns =
          one.cpu_time_ns >= 0 ? stretch.waited_itself_ns() : stretch.waited_inside_ns(one.self_ns);
      one.worked_ns = wrapped_difference(one.self_ns, waited_ns);
    }
  }

 private:
  static constexpr size_t kNoStretch = SIZE_MAX;

  struct Stretch {
    int64_t own_ns, inside_ns, cpu_time_ns;  // of its own range, and of the others

    int64_t waited_ns() const {
      const int64_t all_ns = wrapped_sum(own_ns, inside_ns);
      return std::clamp<int64_t>(wrapped_difference(all_ns, std::max<int64_t>(0, cpu_time_ns)), 0,
                                 std::max<int64_t>(0, all_ns));
    }
    int64_t waited_itself_ns() const { return std::min(waited_ns(), own_ns); }
    // The share of a range that took so long itself.
    int64_t waited_inside_ns(int64_t self_ns) const {
      const int64_t rest_ns = waited_ns() - waited_itself_ns();
      if (rest_ns == 0 || inside_ns == 0) return 0;
      const double share = static_cast<double>(rest_ns) / static_cast<double>(inside_ns);
      return std::min(self_ns, static_cast<int64_t>(share * static_cast<double>(self_ns)));
    }
  };

  void add(std::vector<TimedWork>& all, size_t index) {
    TimedWork& one = all[index];
    one.self_ns = std::max<int64_t>(0, one.self_ns);
    const size_t outer = enclosing_stretch(all, one);
    if (one.cpu_time_ns >= 0) {
      stretch_[index] = stretches_.size();
      stretches_.push_back({one.self_ns, 0, one.cpu_time_ns});
      if (outer == kNoStretch) return;
      int64_t& outer_cpu_ns = stretches_[outer].cpu_time_ns;
      outer_cpu_ns = wrapped_difference(outer_cpu_ns, one.cpu_time_ns);
    } else if (outer != kNoStretch) {
      stretch_[index] = outer;
      stretches_[outer].inside_ns = wrapped_sum(stretches_[outer].inside_ns, one.self_ns);
    }
  }

  size_t enclosing_stretch(const std::vector<TimedWork>& all, const TimedWork& one) const {
    if (one.enclosing == TimedWork::kNone) return kNoStretch;
    const auto enclosing = static_cast<size_t>(one.enclosing);
    return all[enclosing].thread == one.thread ? stretch_[enclosing] : kNoStretch;
  }

  std::vector<Stretch> stretches_;
  std::vector<size_t> stretch_;  // that each belongs to
};

}  // namespace recfn::stage
