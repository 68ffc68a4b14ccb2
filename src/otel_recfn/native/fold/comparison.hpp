// Ranges of a unit beside each other: what lies in what, how they rank, and which are kept.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "fold/places_of_ids.hpp"
#include "fold/range.hpp"

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
    bool kept;
  };

  // A range that came after its parent, or is asynchronous, has no parent afterwards. Where memory runs out (std::bad_alloc) it
  // can be done again.
  void compare(std::vector<Range>& held, size_t compared, int64_t min_duration_ns, int64_t budget);

  const Place& operator[](size_t place) const { return places_[place]; }
  void add_children_ns(size_t place, int64_t time_ns) {
    places_[place].children_ns = sum(places_[place].children_ns, time_ns);
  }
  size_t size() const { return places_.size(); }
  size_t kept() const { return kept_; }
  size_t not_here() const { return not_here_; }  // how many lie in ranges that haven't come

 private:
  struct Candidate {
    int64_t duration;
    uint32_t place;
  };

  void look_at(std::vector<Range>& held, uint32_t place, size_t compared, int64_t min_duration_ns);
  uint32_t find_above(std::vector<Range>& held, uint32_t place);
  void rank(const Range& one, uint32_t place, int64_t min_duration_ns);
  void choose(int64_t budget);
  void keep(uint32_t place) { places_[place].kept = true, ++kept_; }
  bool ranks_above(const Candidate& one, const Candidate& other) const;

  std::vector<Place> places_;
  PlacesOfIds ids_;
  std::vector<Candidate> candidates_;
  size_t of_digits_[kDigits];  // how many of them have so many binary digits
  size_t kept_ = 0, not_here_ = 0;
  uint64_t last_parent_ = 0;
  uint32_t last_above_ = kNone;
  bool ranks_matter_ = true;  // not where none is kept
};

}  // namespace recfn::folding
