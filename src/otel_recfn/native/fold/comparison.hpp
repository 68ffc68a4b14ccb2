// Ranges of a unit beside each other: what lies in what, how they rank, and which are kept.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "fold/places_of_ids.hpp"
#include "fold/range.hpp"
#include "memory/unfilled.hpp"

namespace recfn::folding {

class Comparison {
 public:
  static constexpr uint32_t kNone = PlacesOfIds::kNone;  // it lies directly in the unit
  static constexpr uint32_t kNotHere = kNone - 1;  // it lies in a range that hasn't come

  // A range that came after its parent, or is asynchronous, has no parent afterwards.
  void compare(Ranges& held, int64_t min_duration_ns, int64_t budget);

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

  void find_above(Ranges& held);
  void look_again(Ranges& held);
  void rank_all(const Ranges& held);
  void note_levels(const Ranges& held);
  void choose(const Ranges& held, int64_t budget);
  void list_kept();

  int64_t own_duration(const Range& one) const { return one.duration_ns < min_duration_ns_ ? -1 : one.duration_ns; }
  Rank own_rank(const Range& one) const {
    return {(one.flags & kShown) != 0 ? kForced : own_duration(one), one.event_id, 0};
  }

  PlacesOfIds ids_;
  UnfilledVector<uint32_t> above_, kept_;
  UnfilledVector<uint8_t> levels_;  // the binary digits of its duration, and one; 0: it can't be chosen
  std::vector<uint8_t> is_kept_;
  std::vector<Rank> ranks_;  // where not every range ranks above all that lies in it
  UnfilledVector<Candidate> candidates_;
  size_t of_levels_[kLevels];  // how many are of each
  size_t not_here_ = 0;
  int64_t min_duration_ns_ = 0;
  bool nests_ = true, repeats_ = false, any_forced_ = false;
};

}  // namespace recfn::folding
