// What spans say of a unit that is decided: which of its ranges are kept, which sums of the others stand on which span, and which
// of their paths have a span of their own, a summary.
//
// What is folded directly into a unit whose span can't say so stands on a summary of its path with the most time. What is left of
// a unit's budget goes to further summaries, those of the paths with the most time, if they took long enough.
//
// A summary is as long as its ranges were together and begins where the first of them began, moved so that it stays within its
// parent; where ranges ran beside each other for longer than the parent, it is cut there.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

#include "memory/unfilled.hpp"
#include "model/numbers.hpp"
#include "stage/links.hpp"
#include "stage/unit.hpp"

namespace recfn::stage {

constexpr int64_t kLeastShare = 1000;

// A unit that is decided, or (`goes_on`) a part of it.
struct UnitToDecide {
  SpanAbove above;
  int64_t budget;            // how many spans it may have
  int64_t start_ns, end_ns;  // from when to when it goes
  uint8_t goes_on;
  uint8_t tells_itself;  // the span above it takes what was folded directly below it

  // What took less is no span of its own, unless it failed: a page of the unit shows nothing of it.
  int64_t least_ns() const { return (end_ns - start_ns) / kLeastShare; }
};

constexpr uint32_t kNoTrace = UINT32_MAX;

// A trace that something is linked in.
struct TraceRow {
  uint64_t high, low;
};

// Where a row's link leads: a span id, 0 for none, and its place among the traces.
struct LinkRow {
  uint64_t span_id;
  uint32_t trace;
};

struct KeptRow {
  uint64_t parent;  // the event id of the range that its span is a child of; 0: of the span above its unit
  LinkRow link;
  int64_t row, folded;  // its number; how many ranges were folded into it
  uint32_t unit;        // its place among those that were decided together, as in what follows
};

// Sums of what was folded into a kept range, or (-1) directly into its unit.
struct SumsRow {
  int64_t unit, holder, ranges, duration_ns;
  int64_t top_end;  // where its names end; they begin where those of the sums before it end
};

// A name that took much of the time of some sums.
struct TopRow {
  int64_t count, self_ns;
  uint32_t name;
};

// A span for the ranges of a path.
struct SummaryRow {
  uint64_t span_id, parent_id, first_id;
  int64_t count, total_ns, shortest_ns, longest_ns, start_ns, end_ns;
  int64_t cpu_time_ns;
  int64_t sums;        // which it tells; -1: none
  int64_t counts_end;  // where its histogram ends; it begins where that of the one before ends
  uint32_t unit, name, digits;
};

struct Summaries {
  UnfilledVector<SummaryRow> rows;
  UnfilledVector<int64_t> counts;  // how many durations have so many binary digits, summary after summary

  void append(const Summaries& others) {
    const auto before = static_cast<int64_t>(counts.size());
    for (SummaryRow row : others.rows) {
      row.counts_end += before;
      rows.push_back(row);
    }
    counts.insert(counts.end(), others.counts.begin(), others.counts.end());
  }
};

// Units that were decided together.
struct Decided {
  UnfilledVector<KeptRow> kept;
  UnfilledVector<SumsRow> sums;
  UnfilledVector<TopRow> top;
  Summaries summaries;  // those that tell some sums
  Summaries further;
  std::vector<TraceRow> traces;
};

// Tells one unit after the other. `key`: of span ids.
class UnitTeller {
 public:
  UnitTeller(uint64_t key, SentRanges& sent, Decided& decided) : key_(key), sent_(sent), decided_(decided) {}

  // A unit that has decided, which is the one at `place`.
  void tell(const Unit& unit, const UnitToDecide& wanted, uint32_t place) {
    unit_ = &unit, wanted_ = &wanted, number_ = place;
    kept_ = unit.outermost_first(), first_kept_ = decided_.kept.size();
    left_ = wanted.budget - static_cast<int64_t>(kept_.size());
    places_.clear(), extents_.clear();
    for (const uint32_t each : kept_) {
      decided_.kept.push_back({unit.kept(each).parent, {0, kNoTrace}, unit.range(each).row, 0, number_});
    }
    tell_tree(unit.folded(), kNone);
    for (size_t holder = 0; holder < kept_.size(); ++holder) {
      tell_tree(unit.kept(kept_[holder]).folded, static_cast<int64_t>(holder));
    }
    choose_further();
    for (const uint32_t each : kept_) sent_.add(unit.range(each).event_id);
  }

 private:
  static constexpr int64_t kNone = -1;
  static constexpr size_t kTopNames = 3;
  static constexpr uint32_t kNoName = UINT32_MAX;

  // A path, after the one that it lies in; of several in one the one with the most time first.
  struct Place {
    const Path* path;
    int64_t holder;   // which of the unit's kept ranges it was folded into, or none
    int64_t above;    // the place that it lies in, or none
    int64_t summary;  // its own, or none
  };
  struct Extent {
    uint64_t span_id;
    int64_t start_ns, end_ns;
  };
  struct Name {
    uint32_t name;
    size_t first;  // of its places
    int64_t count, self_ns;
  };

  void tell_tree(const FoldedTree& tree, int64_t holder) {
    const size_t first = places_.size();
    place_all(tree, holder);
    if (places_.size() == first) return;
    const size_t longest = sum_up(first, holder);
    if (holder != kNone) {
      decided_.kept[first_kept_ + static_cast<size_t>(holder)].folded = decided_.sums.back().ranges;
    } else if (wanted_->tells_itself == 0) {
      summarize(places_[longest], static_cast<int64_t>(decided_.sums.size()) - 1, decided_.summaries);
      --left_;
    }
  }

  void place_all(const FoldedTree& tree, int64_t holder) {
    if (tree.root != nullptr) place_below(*tree.root, holder, kNone);
    while (!waiting_.empty()) {
      const Place next = waiting_.back();
      waiting_.pop_back();
      const auto place = static_cast<int64_t>(places_.size());
      places_.push_back(next);
      if (next.path->first_below != nullptr) place_below(*next.path, holder, place);
    }
  }

  void place_below(const Path& path, int64_t holder, int64_t above) {
    const auto first = static_cast<std::ptrdiff_t>(waiting_.size());
    for (const Path* each = path.first_below; each != nullptr; each = each->next) waiting_.push_back({each, holder, above, kNone});
    if (path.below <= 1) return;
    std::sort(waiting_.begin() + first, waiting_.end(), [](const Place& one, const Place& other) {
      const Path &first_path = *one.path, &second_path = *other.path;
      if (first_path.total_ns != second_path.total_ns) return first_path.total_ns < second_path.total_ns;
      return first_path.name > second_path.name;
    });
  }

  // Of a tree, from this place on. Returns the path directly in the holder with the most time. What is told as other ranges only
  // where there is nothing else.
  size_t sum_up(size_t first, int64_t holder) {
    int64_t count = 0, duration_ns = 0, most_ns = INT64_MIN;
    size_t longest = first;
    clear_names(places_.size() - first);
    for (size_t place = first; place < places_.size(); ++place) {
      const Path& path = *places_[place].path;
      count += path.count;
      Name& of_name = name_of(path.name, place);
      of_name.count += path.count, of_name.self_ns = wrapped_sum(of_name.self_ns, path.self_ns);
      if (places_[place].above != kNone) continue;
      duration_ns = wrapped_sum(duration_ns, path.total_ns);
      const int64_t time_ns = path.name == kOther ? -1 : path.total_ns;
      if (time_ns > most_ns) most_ns = time_ns, longest = place;
    }
    tell_names();
    const int64_t of_all = holder == kNone ? kNone : static_cast<int64_t>(first_kept_) + holder;
    decided_.sums.push_back({number_, of_all, count, duration_ns, static_cast<int64_t>(decided_.top.size())});
    return longest;
  }

  void clear_names(size_t paths) {
    names_.clear();
    size_t slots = 16;
    while (slots < 2 * paths) slots *= 2;
    name_slots_.assign(slots, kNoName);
  }

  UnitTeller::Name& name_of(uint32_t name, size_t place) {
    const size_t mask = name_slots_.size() - 1;
    size_t at = (name * 0x9E3779B1u >> 8) & mask;
    while (name_slots_[at] != kNoName && names_[name_slots_[at]].name != name) at = (at + 1) & mask;
    if (name_slots_[at] == kNoName) {
      name_slots_[at] = static_cast<uint32_t>(names_.size());
      names_.push_back({name, place, 0, 0});
    }
    return names_[name_slots_[at]];
  }

  // The names with the most time in themselves; of several the one whose first path comes first.
  void tell_names() {
    const auto last = names_.begin() + static_cast<std::ptrdiff_t>(std::min(names_.size(), kTopNames));
    std::partial_sort(names_.begin(), last, names_.end(), [](const Name& one, const Name& other) {
      return std::tie(other.self_ns, one.first) < std::tie(one.self_ns, other.first);
    });
    for (auto name = names_.begin(); name != last; ++name) decided_.top.push_back({name->count, name->self_ns, name->name});
  }

  // The paths that the budget is left for and that took long enough, each after what it lies in.
  void choose_further() {
    const auto budget = static_cast<size_t>(std::max<int64_t>(0, left_));
    std::vector<size_t> chosen;
    for (size_t at = 0; at < places_.size() && budget > 0; ++at) {
      const Path& path = *places_[at].path;
      if (places_[at].summary != kNone || path.name == kOther || path.in_compilation) continue;
      if (path.total_ns >= wanted_->least_ns()) chosen.push_back(at);
    }
    if (chosen.size() > budget) {
      const auto last = chosen.begin() + static_cast<std::ptrdiff_t>(budget);
      std::nth_element(chosen.begin(), last, chosen.end(), [this](size_t one, size_t other) {
        const int64_t first_ns = places_[one].path->total_ns, second_ns = places_[other].path->total_ns;
        return first_ns != second_ns ? first_ns > second_ns : one < other;
      });
      chosen.resize(budget);
      std::sort(chosen.begin(), chosen.end());
    }
    for (const size_t at : chosen) summarize(places_[at], kNone, decided_.further);
  }

  void summarize(Place& place, int64_t sums, Summaries& told) {
    const Path& path = *place.path;
    const Extent around = extent_around(place);
    const int64_t duration = std::max<int64_t>(0, std::min(path.total_ns, wrapped_difference(around.end_ns, around.start_ns)));
    const int64_t start = std::min(std::max(path.first_ns, around.start_ns), around.end_ns - duration);
    const Extent own{span_id_of(path.first_id, key_), start, start + duration};
    const unsigned digits = path.histogram.each([&told](uint32_t count) { told.counts.push_back(count); });
    told.rows.push_back({own.span_id, around.span_id, path.first_id, path.count, path.total_ns, path.shortest_ns, path.longest_ns,
                         own.start_ns, own.end_ns, path.cpu_time_ns, sums, static_cast<int64_t>(told.counts.size()), number_,
                         path.name, digits});
    place.summary = static_cast<int64_t>(extents_.size());
    extents_.push_back(own);
  }

  // Of the span that a summary is a child of.
  UnitTeller::Extent extent_around(const Place& place) const {
    for (int64_t above = place.above; above != kNone; above = places_[static_cast<size_t>(above)].above) {
      const int64_t summary = places_[static_cast<size_t>(above)].summary;
      if (summary != kNone) return extents_[static_cast<size_t>(summary)];
    }
    if (place.holder == kNone) return {wanted_->above.span_id, wanted_->start_ns, wanted_->end_ns};
    const Range& holder = unit_->range(kept_[static_cast<size_t>(place.holder)]);
    return {span_id_of(holder.event_id, key_), holder.start_ns, wrapped_sum(holder.start_ns, holder.duration_ns)};
  }

  const uint64_t key_;
  SentRanges& sent_;
  Decided& decided_;
  std::vector<Name> names_;           // of one tree
  std::vector<uint32_t> name_slots_;  // where each stands there: a hash table

  // Of the unit that is told.
  const Unit* unit_ = nullptr;
  const UnitToDecide* wanted_ = nullptr;
  uint32_t number_ = 0;
  size_t first_kept_ = 0;        // of its ranges, in `decided_`
  std::vector<uint32_t> kept_;   // its places of these
  std::vector<Place> places_;    // of its paths
  std::vector<Place> waiting_;   // to be placed, the next one last
  std::vector<Extent> extents_;  // of its summaries
  int64_t left_ = 0;             // of its budget
};

}  // namespace recfn::stage
