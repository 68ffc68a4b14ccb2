// When spans of sums begin and end: one after another, so that the length of their parent less
// theirs is what that did itself, as a backend reckons it.
//
//     parent     |------------------------------------------|
//     a range           |---- real ----|
//     sums       |- a -|               |-- b --||- c -|
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "model/numbers.hpp"

namespace recfn::stage {

struct Stretch {
  int64_t start_ns, end_ns;

  int64_t length_ns() const { return wrapped_difference(end_ns, start_ns); }
};

// Lays stretches of one thread out in the one around them.
class SiblingTimes {
 public:
  // Moves stretches so that they lie one after another in `enclosing`, in their order, each near
  // where it was, and beside what is `busy` where there is room. If they are too long for that, the
  // longest are cut. Returns for how long they overlap with what is busy; one that would overlap it
  // for longer than is left of `allowed_ns` is cut, too.
  int64_t lay_out(std::vector<Stretch>& stretches, const Stretch& enclosing,
                  std::vector<Stretch>& busy, int64_t allowed_ns) {
    cut(stretches, std::max<int64_t>(0, enclosing.length_ns()));
    note_busy(busy, enclosing);
    int64_t latest_ns = enclosing.end_ns;  // where what follows one has to begin at the latest
    for (const Stretch& one : stretches) latest_ns -= one.length_ns();
    int64_t earliest_ns = enclosing.start_ns, overlapped_ns = 0;
    for (Stretch& one : stretches) {
      const int64_t length_ns = one.length_ns();
      const int64_t start_ns = best_start(one, earliest_ns, std::max(earliest_ns, latest_ns));
      const int64_t overlap = overlap_ns(start_ns, length_ns);
      latest_ns += length_ns;
      if (overlap > allowed_ns - overlapped_ns) {
        one = longest_free(one, {earliest_ns, std::max(earliest_ns, latest_ns)});
      } else {
        one = {start_ns, start_ns + length_ns};
        overlapped_ns += overlap;
      }
      earliest_ns = one.end_ns;
    }
    return overlapped_ns;
  }

 private:
  // Cuts the longest, so that all together last no longer than that.
  void cut(std::vector<Stretch>& stretches, int64_t room_ns) {
    lengths_.clear();
    for (Stretch& one : stretches) {
      lengths_.push_back(std::clamp<int64_t>(one.length_ns(), 0, room_ns));
      one.end_ns = wrapped_sum(one.start_ns, lengths_.back());
    }
    std::sort(lengths_.begin(), lengths_.end());
    int64_t remaining_ns = room_ns;
    for (size_t at = 0; at < lengths_.size(); ++at) {
      const int64_t share_ns = remaining_ns / static_cast<int64_t>(lengths_.size() - at);
      if (lengths_[at] > share_ns) {
        for (Stretch& one : stretches) {
          one.end_ns = wrapped_sum(one.start_ns, std::min(one.length_ns(), share_ns));
        }
        return;
      }
      remaining_ns -= lengths_[at];
    }
  }

  // What is busy, without what is outside, in order and apart from each other.
  void note_busy(std::vector<Stretch>& busy, const Stretch& enclosing) {
    busy_.clear();
    const auto is_before = [](const Stretch& one, const Stretch& other) {
      return one.start_ns < other.start_ns;
    };
    std::sort(busy.begin(), busy.end(), is_before);
    for (const Stretch& each : busy) {
      int64_t start_ns = std::max(each.start_ns, enclosing.start_ns);
      if (!busy_.empty()) start_ns = std::max(start_ns, busy_.back().end_ns);
      const int64_t end_ns = std::min(each.end_ns, enclosing.end_ns);
      if (start_ns < end_ns) busy_.push_back({start_ns, end_ns});
    }
    busy_before_.assign(1, 0);
    for (const Stretch& each : busy_) {
      busy_before_.push_back(busy_before_.back() + each.length_ns());
    }
  }

  // The start with which it overlaps least with what is busy; of several the nearest to where it
  // was.
  int64_t best_start(const Stretch& one, int64_t earliest_ns, int64_t latest_ns) {
    const int64_t wanted_ns = std::clamp(one.start_ns, earliest_ns, latest_ns);
    if (busy_.empty()) return wanted_ns;
    const int64_t length_ns = one.length_ns();
    int64_t best_ns = wanted_ns;
    std::pair<int64_t, int64_t> cheapest{overlap_ns(wanted_ns, length_ns), 0};
    const auto consider = [&](int64_t start_ns) {
      if (start_ns < earliest_ns || start_ns > latest_ns) return;
      const int64_t moved_ns = start_ns < wanted_ns ? wanted_ns - start_ns : start_ns - wanted_ns;
      const std::pair<int64_t, int64_t> cost{overlap_ns(start_ns, length_ns), moved_ns};
      if (cost >= cheapest) return;
      cheapest = cost;
      best_ns = start_ns;
    };
    consider(earliest_ns);
    consider(latest_ns);
    for (const Stretch& each : busy_) {
      consider(wrapped_difference(each.start_ns, length_ns));
      consider(each.end_ns);
    }
    return best_ns;
  }

  // As much of it as there is room for beside what is busy: in the first of the longest gaps.
  Stretch longest_free(const Stretch& one, const Stretch& room) const {
    Stretch best{room.start_ns, room.start_ns};
    int64_t free_from_ns = room.start_ns;
    const auto consider = [&](int64_t until_ns) {
      const int64_t length_ns = std::min(one.length_ns(), until_ns - free_from_ns);
      if (length_ns <= best.length_ns()) return;
      const int64_t start_ns = std::clamp(one.start_ns, free_from_ns, until_ns - length_ns);
      best = {start_ns, start_ns + length_ns};
    };
    for (const Stretch& each : busy_) {
      consider(std::min(each.start_ns, room.end_ns));
      free_from_ns = std::max(free_from_ns, each.end_ns);
    }
    consider(room.end_ns);
    return best;
  }

  int64_t overlap_ns(int64_t start_ns, int64_t length_ns) const {
    return busy_until(start_ns + length_ns) - busy_until(start_ns);
  }

  // For how long it was busy until then.
  int64_t busy_until(int64_t time_ns) const {
    const auto begins_later = [](int64_t time, const Stretch& each) {
      return time < each.start_ns;
    };
    const auto after = std::upper_bound(busy_.begin(), busy_.end(), time_ns, begins_later);
    if (after == busy_.begin()) return 0;
    const auto last = static_cast<size_t>(after - busy_.begin()) - 1;
    const int64_t busy_in_last_ns = std::min(time_ns, busy_[last].end_ns) - busy_[last].start_ns;
    return busy_before_[last] + busy_in_last_ns;
  }

  std::vector<int64_t> lengths_;
  std::vector<Stretch> busy_;
  std::vector<int64_t> busy_before_;  // for how long it was busy before each
};

}  // namespace recfn::stage
