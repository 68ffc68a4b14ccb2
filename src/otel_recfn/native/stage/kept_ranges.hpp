// Which ranges of a unit are kept as spans, and what the others lie in. `tests/models/folding.py` has the same rules and numbers.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "memory/unfilled.hpp"
#include "model/events.hpp"
#include "stage/containers.hpp"

namespace recfn::stage {

constexpr uint32_t kPathsOfASpan = 128;
constexpr uint32_t kPathsOfAUnit = 1024;
constexpr size_t kMaxAwaited = 1 << 16;
constexpr int64_t kForced = int64_t{1} << 62;  // ranks above every duration
constexpr int64_t kFailed = int64_t{1} << 61;  // is added to the duration of a range that failed; others are shorter
constexpr uint32_t kOther = 0;                 // the number of the name for what no path was left for
constexpr unsigned kDigits = 64;

// The binary digits of a number, without its sign.
inline unsigned digits_of(int64_t number) {
  const auto plain = static_cast<uint64_t>(number);
  const uint64_t size = number < 0 ? 0 - plain : plain;
  return size == 0 ? 0 : 64 - static_cast<unsigned>(__builtin_clzll(size));
}

// A range that has ended. Times in nanoseconds.
struct Range {
  uint64_t event_id, parent;
  int64_t start_ns, duration_ns;
  uint32_t name, flags;
  int64_t row;  // its number, as the caller counts
  int64_t cpu_time_ns;  // -1: not known
};

using Ranges = UnfilledVector<Range>;

struct Rank {
  int64_t duration;  // or `kForced`, or of one that failed `kFailed` and more
  uint64_t first;  // an event id: of equal durations the earlier one ranks higher
  int64_t height;
};
constexpr Rank kNothing{-1, 0, 0};  // ranks below all

inline bool ranks_below(const Rank& one, const Rank& other) {
  if (one.duration != other.duration) return one.duration < other.duration;
  if (one.first != other.first) return one.first > other.first;
  return one.height < other.height;
}

// Without what else lies in it.
inline bool ranks_above_in_it(const Range& around, const Range& one) {
  if (around.duration_ns != one.duration_ns) return around.duration_ns > one.duration_ns;
  return around.event_id < one.event_id;
}

// Where ranges stand in a list, by event id. A thread's event ids count up, so that most lists have nearly all between their
// smallest and their largest one of a thread: each of these then has a place of its own. Other lists are hashed.
class PlacesOfIds {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  // For these ids, none of which has a place yet.
  void clear_for(const Ranges& held) {
    const size_t slots = find_runs(held) ? place_runs(held.size()) : 0;
    if (slots == 0) count_ = 0;
    slots_.assign(count_ == 0 ? hashed_slots(held.size()) : slots, kNone);
    last_ = Run{};
  }

  // The id, one of those, stands there now. Whether it stood elsewhere before.
  bool put(const Ranges& held, uint64_t event_id, uint32_t place) { return std::exchange(*slot(held, event_id), place) != kNone; }

  uint32_t find(const Ranges& held, uint64_t event_id) {
    const uint32_t* found = slot(held, event_id);
    return found == nullptr ? kNone : *found;
  }

 private:
  // Ids of one thread, from the smallest to the largest.
  struct Run {
    uint64_t first = 0, ids = 0;
    size_t slots = 0;  // where its own begin

    bool has(uint64_t event_id) const { return event_id - first < ids; }
    bool is_of_thread(uint64_t event_id) const { return (event_id ^ first) >> kOrdinalBits == 0; }
  };
  static constexpr size_t kMostRuns = 8;
  static constexpr size_t kSlotsOfAnId = 8;

  // False where there are too many. Neighbours mostly are of one thread.
  bool find_runs(const Ranges& held) {
    count_ = 0;
    for (size_t at = 0; at < held.size();) {
      Run* run = find_or_begin(held[at].event_id);
      if (run == nullptr) return false;
      at = widen(*run, held, at);
    }
    return true;
  }

  // By what follows and is of its thread. Where the next thread's begin.
  static size_t widen(Run& run, const Ranges& held, size_t at) {
    const Run thread = run;
    uint64_t first = run.first, last = run.first + (run.ids - 1);
    for (; at < held.size() && thread.is_of_thread(held[at].event_id); ++at) {
      first = std::min(first, held[at].event_id), last = std::max(last, held[at].event_id);
    }
    run.first = first, run.ids = last - first + 1;
    return at;
  }

  Run* find_or_begin(uint64_t event_id) {
    for (size_t at = 0; at < count_; ++at) {
      if (runs_[at].is_of_thread(event_id)) return &runs_[at];
    }
    if (count_ == kMostRuns) return nullptr;
    runs_[count_] = {event_id, 1, 0};
    return &runs_[count_++];
  }

  // How many slots are needed; none where it would be far more than there are ids.
  size_t place_runs(size_t ids) {
    const size_t most = kSlotsOfAnId * ids + 64;
    size_t slots = 0;
    for (Run* run = runs_; run != runs_ + count_; ++run) {
      run->slots = slots;
      if (run->ids > most - slots) return 0;
      slots += run->ids;
    }
    return slots;
  }

  static size_t hashed_slots(size_t ids) {
    size_t size = 16;
    while (size < 2 * ids) size *= 2;
    return size;
  }

  // Null where it lies in no run, as some do that were not among the ids.
  uint32_t* slot(const Ranges& held, uint64_t event_id) {
    if (!last_.has(event_id)) {
      if (count_ == 0) return hashed_slot(held, event_id);
      const Run* run = std::find_if(runs_, runs_ + count_, [event_id](const Run& one) { return one.has(event_id); });
      if (run == runs_ + count_) return nullptr;
      last_ = *run;
    }
    return &slots_[last_.slots + (event_id - last_.first)];
  }

  // Its own, or an empty one where it isn't there.
  uint32_t* hashed_slot(const Ranges& held, uint64_t event_id) {
    const size_t mask = slots_.size() - 1;
    size_t at = scrambled(event_id) & mask;
    while (slots_[at] != kNone && held[slots_[at]].event_id != event_id) at = (at + 1) & mask;
    return &slots_[at];
  }

  std::vector<uint32_t> slots_;
  Run runs_[kMostRuns];
  size_t count_ = 0;  // of runs; none where ids are hashed
  Run last_;          // that was asked for
};

// How many of a unit's ranges are kept.
struct Bounds {
  int64_t budget;
  int64_t of_failed;  // so many that failed, or in which one did, are kept even where the budget is smaller
  int64_t least_ns;   // shorter ones are kept only if they failed or were shown, or such a one or a longer one lies in them
};

// Ranges of a unit beside each other: what lies in what, how they rank, and which are kept.
class Comparison {
 public:
  static constexpr uint32_t kNone = PlacesOfIds::kNone;  // it lies directly in the unit
  static constexpr uint32_t kNotHere = kNone - 1;  // it lies in a range that hasn't come

  // A range that came after its parent, or is asynchronous, has no parent afterwards.
  void compare(Ranges& held, const Bounds& bounds) {
    bounds_ = bounds;
    above_.resize(held.size()), levels_.resize(held.size()), is_kept_.assign(held.size(), 0);
    find_above(held);
    if (bounds.budget > 0 || any_first_) {
      if (!nests_) rank_all(held);
      note_levels(held);
      choose(held);
    }
    list_kept();
  }

  size_t size() const { return above_.size(); }
  uint32_t above(size_t place) const { return above_[place]; }  // the place of the range that it lies in
  bool is_kept(size_t place) const { return is_kept_[place] != 0; }
  const UnfilledVector<uint32_t>& kept() const { return kept_; }  // their places, in ascending order
  Rank rank(const Ranges& held, size_t place) const { return nests_ ? own_rank(held[place]) : ranks_[place]; }
  // Whether no other range of the same event id came before.
  bool is_first(const Ranges& held, size_t place) { return !repeats_ || ids_.find(held, held[place].event_id) == place; }
  size_t not_here() const { return not_here_; }  // how many lie in ranges that haven't come

 private:
  struct Candidate {
    int64_t duration;
    uint32_t place;
  };
  static constexpr unsigned kLevels = kDigits + 1;
  static constexpr unsigned kFailedLevel = 63;  // durations from `kFailed` on, below `kForced`, have 62 digits

  // What is around a range comes after it.
  void find_above(Ranges& held) {
    uint32_t* const above_of = above_.data();
    size_t not_here = 0;
    bool nests = true, repeats = false, any_first = false;
    ids_.clear_for(held);
    for (auto place = static_cast<uint32_t>(held.size()); place-- > 0;) {
      Range& one = held[place];
      if ((one.flags & kOverlapping) != 0) one.parent = 0;
      any_first |= comes_first(one);
      uint32_t above = one.parent == 0 ? kNone : ids_.find(held, one.parent);
      if (above != kNone) {
        nests &= ranks_above_in_it(held[above], one) && (held[above].flags & ~one.flags & kInCompilation) == 0;
      } else if (one.parent != 0) {
        above = kNotHere, ++not_here;
      }
      above_of[place] = above;
      repeats |= ids_.put(held, one.event_id, place);
    }
    not_here_ = not_here, repeats_ = repeats, any_first_ = any_first;
    nests_ = nests && !repeats && !any_first;
    if (not_here > 0 || repeats) look_again(held);
  }

  // Of what came after the range that it lies in; and of several with one id the first one counts.
  void look_again(Ranges& held) {
    not_here_ = 0;
    for (uint32_t place = 0; place < held.size(); ++place) {
      if (above_[place] != kNotHere && !repeats_) continue;
      Range& one = held[place];
      const uint32_t found = one.parent == 0 ? kNone : ids_.find(held, one.parent);
      const bool missing = one.parent != 0 && found == kNone, later = found != kNone && found > place;
      if (!missing && !later) one.parent = 0;
      not_here_ += missing ? 1 : 0;
      above_[place] = missing ? kNotHere : later ? found : kNone;
    }
  }

  // What lies in a range comes before it, so that the highest rank in it is there when its turn comes.
  void rank_all(const Ranges& held) {
    ranks_.assign(held.size(), kNothing);
    for (uint32_t place = 0; place < held.size(); ++place) {
      Rank& own = ranks_[place];
      const Rank alone = own_rank(held[place]);
      ++own.height;
      if (!is_first(held, place)) {
        own = kNothing;
      } else if (!ranks_below(alone, own)) {
        own = alone;
      }
      const uint32_t above = above_[place];
      if (above < kNotHere && ranks_below(ranks_[above], own)) ranks_[above] = own;
      is_kept_[place] = own.duration == kForced ? 1 : 0;
    }
  }

  void note_levels(const Ranges& held) {
    std::fill(of_levels_, of_levels_ + kLevels, 0);
    for (uint32_t place = 0; place < held.size(); ++place) {
      const int64_t duration = nests_ ? own_duration(held[place]) : ranks_[place].duration;
      const unsigned level = duration < 0 || duration == kForced ? 0 : digits_of(duration) + 1;
      levels_[place] = static_cast<uint8_t>(level), ++of_levels_[level];
    }
  }

  // A higher level ranks higher, so only those of one level have to be compared with each other.
  void choose(const Ranges& held) {
    size_t left = budget_beside_forced();
    unsigned level = kLevels;  // from here on all are kept
    while (level > 1 && left >= of_levels_[level - 1]) left -= of_levels_[--level];
    candidates_.clear(), candidates_.reserve(level > 1 ? of_levels_[level - 1] : 0);
    for (uint32_t place = 0; place < held.size(); ++place) {
      if (levels_[place] >= level) is_kept_[place] = 1;
      if (levels_[place] != 0 && levels_[place] + 1u == level) {
        candidates_.emplace_back() = {rank(held, place).duration, place};
      }
    }
    const auto last = candidates_.begin() + static_cast<std::ptrdiff_t>(std::min(left, candidates_.size()));
    const auto is_above = [&](const Candidate& one, const Candidate& other) {
      if (one.duration != other.duration) return one.duration > other.duration;
      return ranks_below(rank(held, other.place), rank(held, one.place));
    };
    std::nth_element(candidates_.begin(), last, candidates_.end(), is_above);
    for (auto one = candidates_.begin(); one != last; ++one) is_kept_[one->place] = 1;
  }

  // Those that failed rank above the others: they are of one level.
  size_t budget_beside_forced() const {
    const int64_t forced = std::count(is_kept_.begin(), is_kept_.end(), 1);
    const auto failed = static_cast<int64_t>(of_levels_[kFailedLevel]);
    return static_cast<size_t>(std::max<int64_t>({0, bounds_.budget - forced, std::min(failed, bounds_.of_failed - forced)}));
  }

  void list_kept() {
    kept_.clear(), kept_.reserve(static_cast<size_t>(std::count(is_kept_.begin(), is_kept_.end(), 1)));
    for (uint32_t place = 0; place < is_kept_.size(); ++place) {
      if (is_kept_[place] != 0) kept_.push_back(place);
    }
  }

  static bool comes_first(const Range& one) { return (one.flags & (kShown | kError)) != 0 || one.duration_ns >= kFailed; }
  int64_t own_duration(const Range& one) const {
    if ((one.flags & kShown) != 0) return kForced;
    const int64_t duration = std::min(one.duration_ns, kFailed - 1);
    if ((one.flags & kError) != 0) return kFailed + duration;
    return duration < bounds_.least_ns || (one.flags & kInCompilation) != 0 ? -1 : duration;
  }
  Rank own_rank(const Range& one) const { return {own_duration(one), one.event_id, 0}; }

  PlacesOfIds ids_;
  UnfilledVector<uint32_t> above_, kept_;
  UnfilledVector<uint8_t> levels_;  // the binary digits of its duration, and one; 0: it can't be chosen
  std::vector<uint8_t> is_kept_;
  std::vector<Rank> ranks_;  // where not every range ranks above all that lies in it
  UnfilledVector<Candidate> candidates_;
  size_t of_levels_[kLevels];  // how many are of each
  size_t not_here_ = 0;
  Bounds bounds_{};
  bool nests_ = true, repeats_ = false, any_first_ = false;  // `any_first_`: some rank above what their duration says
};

}  // namespace recfn::stage
