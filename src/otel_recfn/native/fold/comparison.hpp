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

  struct Place {
    Rank rank;
    int64_t children_ns;  // of those that weren't compared before
    uint32_t above;       // the place of the range that it lies in
    bool first;           // of the same event id
  };

  // A range that came after its parent, or is asynchronous, has no parent afterwards. Where memory runs out (std::bad_alloc) it
  // can be done again.
  void compare(Ranges& held, size_t compared, int64_t min_duration_ns, int64_t budget);

  const Place& operator[](size_t place) const { return places_[place]; }
  void add_children_ns(size_t place, int64_t time_ns) {
    places_[place].children_ns = sum(places_[place].children_ns, time_ns);
  }
  size_t size() const { return places_.size(); }
  bool is_kept(size_t place) const { return is_kept_[place] != 0; }
  size_t kept() const { return kept_; }
  size_t not_here() const { return not_here_; }  // how many lie in ranges that haven't come

 private:
  struct Candidate {
    int64_t duration;
    uint32_t place;
  };

  static void begin(Place& own, bool first);
  void look_at(Ranges& held, uint32_t place, size_t compared, int64_t min_duration_ns);
  uint32_t find_above(Ranges& held, uint32_t place);
  void rank(const Range& one, uint32_t place, int64_t min_duration_ns);
  void choose(int64_t budget);
  void keep(uint32_t place) { is_kept_[place] = 1, ++kept_; }
  bool ranks_above(const Candidate& one, const Candidate& other) const;

  UnfilledVector<Place> places_;
  std::vector<uint8_t> is_kept_;  // beside the places, since it is asked for most often
  PlacesOfIds ids_;
  UnfilledVector<Candidate> candidates_;
  size_t of_digits_[kDigits];  // how many of them have so many binary digits
  size_t kept_ = 0, not_here_ = 0;
  uint64_t last_parent_ = 0;
  uint32_t last_above_ = kNone;
  bool ranks_matter_ = true;  // not where none is kept
};

}  // namespace recfn::folding
