// When the summaries of a unit begin and end. Those of one thread in one span lie one after
// another, in the order in which the ranges that they stand for began (`sibling_times.hpp`). Where
// a summary was moved, so is all that lies in it.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

#include "model/numbers.hpp"
#include "stage/sibling_times.hpp"

namespace recfn::stage {

// A range that is kept, or a span of what samples found in Python.
struct SelectedTimes {
  uint64_t event_id;  // 0: nothing lies in it
  uint64_t parent;    // the kept range that it lies in; 0: it lies directly in the unit
  uint32_t thread;
  Stretch times;
};

// A span of sums.
struct SummaryTimes {
  static constexpr int64_t kUnit = -1;

  int64_t enclosing;  // what it lies in: the unit, or a number of the kept ranges and then the
                      // summaries
  uint32_t thread;
  uint64_t first_id;          // of the ranges that it stands for
  int64_t first_ns, last_ns;  // from the first begin to the last end
  int64_t total_ns;
  Stretch times;  // what is found
};

class SummaryLayout {
 public:
  // Finds the times of summaries, beside ranges that are kept and what samples found. What one lies
  // in comes before it.
  void lay_out(std::vector<SummaryTimes>& summaries, const std::vector<SelectedTimes>& selected,
               const std::vector<SelectedTimes>& sampled, const Stretch& unit) {
    if (summaries.empty()) return;
    allowed_ns_ = std::max<int64_t>(0, unit.length_ns()) / kOverlapping;
    list(summaries);
    list(selected, sampled);
    for (size_t first = 0, last = 0; first < summaries_.size(); first = last) {
      const auto is_sibling = [&](const SummaryTimes* one) {
        return one->enclosing == summaries_[first]->enclosing &&
               one->thread == summaries_[first]->thread;
      };
      while (last < summaries_.size() && is_sibling(summaries_[last])) ++last;
      lay_out(first, last, room_of(summaries, selected, unit, *summaries_[first]));
    }
  }

 private:
  // What siblings lie in.
  struct Room {
    Stretch times;
    int64_t moved_ns;   // by how much it isn't where its first range was
    bool ends;          // nothing of theirs lasts longer
    bool has_selected;  // ranges that are kept may lie beside them: those with this parent
    uint64_t event_id;
  };

  // In groups of siblings.
  void list(std::vector<SummaryTimes>& summaries) {
    summaries_.clear();
    for (SummaryTimes& each : summaries) summaries_.push_back(&each);
    std::sort(summaries_.begin(), summaries_.end(),
              [](const SummaryTimes* one, const SummaryTimes* other) {
                return std::tie(one->enclosing, one->thread, one->first_ns, one->first_id) <
                       std::tie(other->enclosing, other->thread, other->first_ns, other->first_id);
              });
  }
  void list(const std::vector<SelectedTimes>& selected, const std::vector<SelectedTimes>& sampled) {
    selected_.assign(selected.begin(), selected.end());
    selected_.insert(selected_.end(), sampled.begin(), sampled.end());
    std::sort(selected_.begin(), selected_.end(), comes_before);
  }
  static bool comes_before(const SelectedTimes& one, const SelectedTimes& other) {
    return std::tie(one.parent, one.thread) < std::tie(other.parent, other.thread);
  }

  static Room room_of(const std::vector<SummaryTimes>& summaries,
                      const std::vector<SelectedTimes>& selected, const Stretch& unit,
                      const SummaryTimes& one) {
    if (one.enclosing == SummaryTimes::kUnit) return {unit, 0, false, true, 0};
    const auto number = static_cast<size_t>(one.enclosing);
    if (number < selected.size()) {
      return {selected[number].times, 0, false, true, selected[number].event_id};
    }
    const SummaryTimes& enclosing = summaries[number - selected.size()];
    const int64_t moved_ns = wrapped_difference(enclosing.times.start_ns, enclosing.first_ns);
    return {enclosing.times, moved_ns, enclosing.thread == one.thread, false, 0};
  }

  // Siblings of one thread. What ran in another thread than the range around it may outlast that.
  void lay_out(size_t first, size_t last, Room room) {
    stretches_.clear();
    for (size_t i = first; i < last; ++i) {
      const SummaryTimes& one = *summaries_[i];
      const int64_t start_ns = wrapped_sum(one.first_ns, room.moved_ns);
      stretches_.push_back({start_ns, wrapped_sum(start_ns, std::max<int64_t>(0, one.total_ns))});
      const int64_t end_ns = wrapped_sum(one.last_ns, room.moved_ns);
      if (!room.ends) room.times.end_ns = std::max(room.times.end_ns, end_ns);
    }
    busy_.clear();
    if (room.has_selected) {
      const SelectedTimes wanted{0, room.event_id, summaries_[first]->thread, {}};
      const auto [begin, end] =
          std::equal_range(selected_.begin(), selected_.end(), wanted, comes_before);
      for (auto each = begin; each != end; ++each) busy_.push_back(each->times);
    }
    allowed_ns_ -= siblings_.lay_out(stretches_, room.times, busy_, allowed_ns_);
    for (size_t i = first; i < last; ++i) summaries_[i]->times = stretches_[i - first];
  }

  // Summaries overlap with kept ranges for a twelfth of the unit at most: by that much the self
  // times that a backend reckons are too long in sum.
  static constexpr int64_t kOverlapping = 12;

  int64_t allowed_ns_ = 0;  // what is left of that
  std::vector<SummaryTimes*> summaries_;
  std::vector<SelectedTimes> selected_;
  std::vector<Stretch> stretches_, busy_;
  SiblingTimes siblings_;
};

}  // namespace recfn::stage
