// Ranges of a unit beside each other: what lies in what, how they rank, and which are kept.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/unfilled.hpp"
#include "model/events.hpp"
#include "stage/places_of_ids.hpp"
#include "stage/range.hpp"

namespace recfn::stage {

// How many of a unit's ranges are kept.
struct Bounds {
  int64_t budget;
  int64_t of_failed;  // so many that failed, or in which one did, are kept even where the budget is smaller
  int64_t least_ns;   // shorter ones are kept only if they failed or were shown, or such a one or a longer one lies in them
};

class Comparison {
 public:
  static constexpr uint32_t kNone = PlacesOfIds::kNone;  // it lies directly in the unit
  static constexpr uint32_t kNotHere = kNone - 1;  // it lies in a range that hasn't come

  // A range that came after its parent, or is asynchronous, has no parent afterwards.
  void compare(Ranges& held, const Bounds& bounds);

  size_t size() const { return above_.size(); }
  uint32_t above(size_t place) const { return above_[place]; }  // the place of the range that it lies in
  bool is_kept(size_t place) const { return is_kept_[place] != 0; }
  const UnfilledVector<uint32_t>& kept() const { return kept_; }  // their places, in ascending order
  Rank rank(const Ranges& held, size_t place) const { return nests_ ? own_rank(held[place]) : ranks_[place]; }
  // Of the same event id.
  bool is_first(const Ranges& held, size_t place) { return !repeats_ || ids_.find(held, held[place].event_id) == place; }
  size_t not_here() const { return not_here_; }  // how many lie in ranges that haven't come

 private:
  struct Candidate {
    int64_t duration;
    uint32_t place;
  };
  static constexpr unsigned kLevels = kDigits + 1;
  static constexpr unsigned kFailedLevel = 63;  // durations from `kFailed` on, below `kForced`, have 62 digits

  void find_above(Ranges& held);
  void look_again(Ranges& held);
  void rank_all(const Ranges& held);
  void note_levels(const Ranges& held);
  void choose(const Ranges& held);
  size_t budget_beside_forced() const;
  void list_kept();

  static bool comes_first(const Range& one) { return (one.flags & (kShown | kError)) != 0 || one.duration_ns >= kFailed; }
  int64_t own_duration(const Range& one) const {
    if ((one.flags & kShown) != 0) return kForced;
    const int64_t duration = std::min(one.duration_ns, kFailed - 1);
    if ((one.flags & kError) != 0) return kFailed + duration;
    return duration < bounds_.least_ns ? -1 : duration;
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
