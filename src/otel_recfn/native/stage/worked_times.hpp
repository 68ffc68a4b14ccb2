// How long the ranges of a unit worked by themselves, as far as their threads' CPU times say so.
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
#include "stage/name_times.hpp"
#include "stage/unit_state.hpp"
#include "stage/unit_tree.hpp"

namespace recfn::stage {

class WorkedTimes {
 public:
  // Finds the times of a unit that lies in `step`, if its CPU time is known.
  void find(const UnitTree& tree, const WorkedRange& step) {
    tree_ = &tree;
    stretches_.clear();
    parts_.clear();
    times_.clear();
    parts_.reserve(tree.selected_count() + tree.nodes().size());
    times_.reserve(parts_.capacity());
    step_stretch_ = kNoStretch;
    if (step.cpu_time_ns >= 0) {
      step_stretch_ =
          begin_stretch({step.thread, step.cpu_time_ns}, step_self_ns(step), kNoStretch);
    }
    for (size_t i = 0; i < tree.selected_count(); ++i) {
      const Range& one = tree.range(i);
      add({one.display_name, 1, tree.self_ns(i)}, {one.thread(), one.cpu_time_ns},
          stretch_around(tree.enclosing_selected(i), kNoIndex));
    }
    for (const PathNode& node : tree.nodes()) {
      const Path& path = *node.path;
      add({path.display_name, path.count, path.self_ns}, {path.thread, path.cpu_time_ns},
          stretch_around(node.selected, node.parent));
    }
    if (stretches_.empty()) return;  // as far as is known, all worked
    for (Stretch& each : stretches_) each.find_waits();
    for (size_t i = 0; i < times_.size(); ++i) subtract_wait(times_[i], parts_[i]);
  }

  // Those of a node of the tree.
  const NameTime& node(size_t index) const { return times_[tree_->selected_count() + index]; }
  // Those of all nodes, and then of all selected ranges.
  template <typename Take>
  void each(Take take) const {
    const auto nodes = times_.begin() + static_cast<std::ptrdiff_t>(tree_->selected_count());
    std::for_each(nodes, times_.end(), take);
    std::for_each(times_.begin(), nodes, take);
  }

 private:
  static constexpr uint32_t kNoStretch = UINT32_MAX;

  struct Sums {
    uint32_t name;
    int64_t count, self_ns;
  };
  struct Work {
    uint32_t thread;
    int64_t cpu_time_ns;  // -1: not known
  };

  struct Stretch {
    uint32_t thread;
    int64_t own_ns, inside_ns;  // of its own range, and of the others
    int64_t cpu_time_ns;
    int64_t own_wait_ns = 0;   // what is found
    double inside_wait = 0.0;  // as a share of the time of each range

    void find_waits() {
      const int64_t all_ns = std::max<int64_t>(0, wrapped_sum(own_ns, inside_ns));
      const int64_t idle_ns = wrapped_difference(all_ns, std::max<int64_t>(0, cpu_time_ns));
      const int64_t wait_ns = std::clamp<int64_t>(idle_ns, 0, all_ns);
      own_wait_ns = std::min(wait_ns, own_ns);
      if (wait_ns == own_wait_ns || inside_ns == 0) return;
      inside_wait = static_cast<double>(wait_ns - own_wait_ns) / static_cast<double>(inside_ns);
    }
  };

  // Which stretch something is a part of.
  struct Part {
    uint32_t stretch;
    bool is_its_range;  // and no range inside
  };

  void add(const Sums& one, const Work& work, uint32_t around) {
    if (around != kNoStretch && stretches_[around].thread != work.thread) around = kNoStretch;
    const int64_t self_ns = std::max<int64_t>(0, one.self_ns);
    times_.push_back({one.name, one.count, one.self_ns, self_ns});
    if (work.cpu_time_ns >= 0) {
      parts_.push_back({begin_stretch(work, self_ns, around), true});
      return;
    }
    parts_.push_back({around, false});
    if (around == kNoStretch) return;
    stretches_[around].inside_ns = wrapped_sum(stretches_[around].inside_ns, self_ns);
  }

  uint32_t begin_stretch(const Work& work, int64_t self_ns, uint32_t around) {
    if (around != kNoStretch) {
      int64_t& cpu_time_ns = stretches_[around].cpu_time_ns;
      cpu_time_ns = wrapped_difference(cpu_time_ns, work.cpu_time_ns);
    }
    stretches_.push_back({work.thread, self_ns, 0, work.cpu_time_ns});
    return static_cast<uint32_t>(stretches_.size() - 1);
  }

  // The stretch of the node around something, else of the selected range, else of the step.
  uint32_t stretch_around(int64_t selected, int64_t node) const {
    if (node != kNoIndex) {
      return parts_[tree_->selected_count() + static_cast<size_t>(node)].stretch;
    }
    return selected == kNoIndex ? step_stretch_ : parts_[static_cast<size_t>(selected)].stretch;
  }

  // The step's own time: that in which none of the ranges directly in it ran.
  int64_t step_self_ns(const WorkedRange& step) const {
    int64_t self_ns = step.duration_ns;
    for (size_t i = 0; i < tree_->selected_count(); ++i) {
      const Range& one = tree_->range(i);
      const bool is_outermost = tree_->enclosing_selected(i) == kNoIndex;
      if (is_outermost && one.thread() == step.thread && !overlaps(one)) {
        self_ns = wrapped_difference(self_ns, one.duration_ns);
      }
    }
    for (const PathNode& node : tree_->nodes()) {
      if (node.is_outermost() && node.path->thread == step.thread) {
        self_ns = wrapped_difference(self_ns, node.path->total_ns);
      }
    }
    return std::max<int64_t>(0, self_ns);
  }

  void subtract_wait(NameTime& one, const Part& part) const {
    if (part.stretch == kNoStretch) return;
    const Stretch& stretch = stretches_[part.stretch];
    int64_t wait_ns = stretch.own_wait_ns;
    if (!part.is_its_range) {
      const double share_ns = stretch.inside_wait * static_cast<double>(one.worked_ns);
      wait_ns = std::min(one.worked_ns, static_cast<int64_t>(share_ns));
    }
    one.worked_ns = wrapped_difference(one.worked_ns, wait_ns);
  }

  const UnitTree* tree_ = nullptr;
  std::vector<Stretch> stretches_;
  uint32_t step_stretch_ = kNoStretch;
  // Of the selected ranges, then of the nodes.
  std::vector<Part> parts_;
  std::vector<NameTime> times_;
};

}  // namespace recfn::stage
