// What spans say of a unit that is decided: which of its ranges are kept, which of the paths of the
// others have a span of their own, a summary, and the sums of what was folded.
//
// What is left of a unit's budget goes to summaries, those of the paths with the most time, if they
// took long enough. A unit has one in any case, unless something in it is kept, or the span above
// it is ours.
//
// A summary is as long as its ranges were together and begins where the first of them began, moved
// so that it stays within its parent; where ranges ran beside each other for longer than the
// parent, it is cut there. That of a single range, which lies in a summary, says what its row says.
//
// Each kept range has the sums of what was folded into it. Those of the whole unit stand on the
// span that a reader sees first: on the longest one directly in it, or the root of ours above it.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/unfilled.hpp"
#include "model/numbers.hpp"
#include "stage/links.hpp"
#include "stage/name_times.hpp"
#include "stage/unit.hpp"

namespace recfn::stage {

// A unit that is decided, or (`goes_on`) a part of it.
struct UnitToDecide {
  SpanAbove above;
  int64_t budget;            // how many spans it may have
  int64_t start_ns, end_ns;  // from when to when it goes
  uint8_t goes_on;
  uint8_t tells_itself;  // the span above it takes what was folded directly below it
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
  uint64_t parent;  // the event id of the range that its span is a child of; 0: of the span above
                    // its unit
  LinkRow link;
  int64_t row;  // its number
  int64_t start_ns, end_ns;
  uint32_t unit;  // its place among those that were decided together, as in what follows
};

// Sums that a span tells: of what was folded into it, or (`of_unit`) of the whole unit.
struct SumsRow {
  int64_t unit;
  int64_t
      span;  // the kept ones are numbered first, then the summaries; -1: the span above the unit
  int64_t of_unit, ranges, duration_ns;
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
  int64_t row;  // of a single range; -1: it stands for several, or the row is forgotten
  uint32_t unit, name, module;  // where in its model that is called, maybe with `*` for numbers; 0:
                                // that isn't the same for all
};

// Units that were decided together.
struct Decided {
  UnfilledVector<KeptRow> kept;
  UnfilledVector<SumsRow> sums;
  UnfilledVector<TopRow> top;
  UnfilledVector<SummaryRow> summaries;
  std::vector<TraceRow> traces;
};

constexpr int64_t kFirstSummary = int64_t{1}
                                  << 62;  // its number, before it is known how many ranges are kept

// Tells one unit after the other. `key`: of span ids.
class UnitTeller {
 public:
  UnitTeller(uint64_t key, SentRanges& sent, Decided& decided)
      : key_(key), sent_(sent), decided_(decided) {}

  // A unit that has decided, which is the one at `place`.
  void tell(const Unit& unit, const UnitToDecide& wanted, uint32_t place) {
    unit_ = &unit, wanted_ = &wanted, number_ = place;
    kept_ = unit.outermost_first();
    first_span_ = wanted.tells_itself != 0 ? kNone : kNoSpan, first_ns_ = INT64_MAX;
    places_.clear(), extents_.clear();
    tell_kept();
    place_all(unit.folded(), kNone);
    for (size_t holder = 0; holder < kept_.size(); ++holder) {
      place_all(unit.kept(kept_[holder]).folded, static_cast<int64_t>(holder));
    }
    choose_summaries();
    sum_up();
    for (const uint32_t each : kept_) sent_.add(unit.range(each).event_id);
  }

 private:
  static constexpr int64_t kNone = -1, kNoSpan = -2;

  // A path, after the one that it lies in; of several in one the one with the most time first.
  struct Place {
    const Path* path;
    int64_t holder;   // which of the unit's kept ranges it was folded into, or none
    int64_t above;    // the place that it lies in, or none
    int64_t summary;  // its own, or none
    bool is_shown;    // it may have a summary: it is no part of what is around it
    bool is_kept;     // it is a single range with a summary, which is as good as kept
  };
  struct Extent {
    uint64_t span_id;
    int64_t start_ns, end_ns;
  };

  void tell_kept() {
    first_kept_ = static_cast<int64_t>(decided_.kept.size());
    for (const uint32_t each : kept_) {
      const Range& one = unit_->range(each);
      const uint64_t parent = unit_->kept(each).parent;
      if (parent == 0) note_span(static_cast<int64_t>(decided_.kept.size()), one.duration_ns);
      const int64_t end_ns = wrapped_sum(one.start_ns, one.duration_ns);
      decided_.kept.push_back({parent, {0, kNoTrace}, one.row, one.start_ns, end_ns, number_});
    }
  }

  // One directly in the unit: the first of the longest ones is what a reader sees first.
  void note_span(int64_t number, int64_t duration_ns) {
    if (first_span_ == kNoSpan || duration_ns > first_ns_)
      first_span_ = number, first_ns_ = duration_ns;
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
    for (const Path* each = path.first_below; each != nullptr; each = each->next) {
      waiting_.push_back({each, holder, above, kNone, !is_of_node(*each, holder, above), false});
    }
    std::sort(waiting_.begin() + first, waiting_.end(), [](const Place& one, const Place& other) {
      const Path &first_path = *one.path, &second_path = *other.path;
      if (first_path.total_ns != second_path.total_ns)
        return first_path.total_ns < second_path.total_ns;
      return first_path.name > second_path.name;
    });
  }

  // Whether the span of what is around it tells of it: it is a backward node there, or the range
  // around the node that this tells of.
  bool is_of_node(const Path& path, int64_t holder, int64_t above) const {
    if (above != kNone || holder == kNone) return path.home != &path;
    const Range& around = unit_->range(kept_[static_cast<size_t>(holder)]);
    return is_node_of(around, path.name) ||
           (around.shown != around.name && path.name == around.name);
  }

  // The paths that the budget is left for and that took long enough, each after what it lies in.
  void choose_summaries() {
    const auto budget = static_cast<size_t>(
        std::max<int64_t>(0, wanted_->budget - static_cast<int64_t>(kept_.size())));
    std::vector<size_t> chosen;
    for (size_t at = 0; at < places_.size() && budget > 0; ++at) {
      const Place& place = places_[at];
      const bool may_be = place.is_shown && !place.path->in_compilation;
      if (may_be && place.path->total_ns >= unit_->least_told_ns()) chosen.push_back(at);
    }
    if (chosen.size() > budget) {
      const auto last = chosen.begin() + static_cast<std::ptrdiff_t>(budget);
      std::nth_element(chosen.begin(), last, chosen.end(), [this](size_t one, size_t other) {
        const int64_t first_ns = places_[one].path->total_ns,
                      second_ns = places_[other].path->total_ns;
        return first_ns != second_ns ? first_ns > second_ns : one < other;
      });
      chosen.resize(budget);
      std::sort(chosen.begin(), chosen.end());
    }
    const bool has_span = !chosen.empty() || !kept_.empty() || wanted_->tells_itself != 0;
    if (!has_span && !places_.empty()) chosen.push_back(longest_in_unit());
    for (const size_t at : chosen) summarize(places_[at]);
  }

  size_t longest_in_unit() const {
    size_t longest = 0;
    for (size_t at = 1; at < places_.size(); ++at) {
      if (places_[at].above == kNone &&
          places_[at].path->total_ns > places_[longest].path->total_ns)
        longest = at;
    }
    return longest;
  }

  void summarize(Place& place) {
    const Path& path = *place.path;
    const int64_t row = path.count == 1 ? path.first_row : -1;
    place.is_kept = row >= 0;
    const int64_t above = summary_above(place);
    const Extent around =
        above == kNone ? extent_of_holder(place) : extents_[static_cast<size_t>(above)];
    if (above == kNone && place.holder == kNone) {
      note_span(kFirstSummary + static_cast<int64_t>(decided_.summaries.size()), path.total_ns);
    }
    const int64_t duration = std::max<int64_t>(
        0, std::min(path.total_ns, wrapped_difference(around.end_ns, around.start_ns)));
    const int64_t start =
        std::min(std::max(path.first_ns, around.start_ns), around.end_ns - duration);
    const Extent own{span_id_of(path.first_id, key_), start, start + duration};
    decided_.summaries.push_back({own.span_id, around.span_id, path.first_id, path.count,
                                  path.total_ns, path.shortest_ns, path.longest_ns, own.start_ns,
                                  own.end_ns, path.cpu_time_ns, row, number_, path.shown,
                                  module_of(place)});
    place.summary = static_cast<int64_t>(extents_.size());
    extents_.push_back(own);
  }

  // The summary that it lies in, or none.
  int64_t summary_above(const Place& place) const {
    int64_t above = place.above;
    while (above != kNone && places_[static_cast<size_t>(above)].summary == kNone)
      above = places_[static_cast<size_t>(above)].above;
    return above == kNone ? kNone : places_[static_cast<size_t>(above)].summary;
  }

  Extent extent_of_holder(const Place& place) const {
    if (place.holder == kNone) return {wanted_->above.span_id, wanted_->start_ns, wanted_->end_ns};
    const Range& holder = unit_->range(kept_[static_cast<size_t>(place.holder)]);
    return {span_id_of(holder.event_id, key_), holder.start_ns,
            wrapped_sum(holder.start_ns, holder.duration_ns)};
  }

  // Of each tree where the span that it was folded into is ours, and of the unit.
  void sum_up() {
    Sums unit;
    for (size_t at = 0; at < places_.size();) {
      const int64_t holder = places_[at].holder;
      Sums sums;
      names_.clear();
      for (; at < places_.size() && places_[at].holder == holder; ++at) {
        if (!places_[at].is_kept) add(sums, places_[at]);
      }
      unit.ranges += sums.ranges,
          unit.duration_ns = wrapped_sum(unit.duration_ns, sums.duration_ns);
      if (holder == kNone && wanted_->tells_itself == 0) continue;
      if (sums.ranges != 0) push_sums(holder == kNone ? kNone : first_kept_ + holder, false, sums);
    }
    names_.clear();
    if (unit.ranges != 0) add_names_of_unit();
    if (first_span_ != kNoSpan) push_sums(first_span_, true, unit);
  }

  struct Sums {
    int64_t ranges = 0, duration_ns = 0;
  };
  void add(Sums& sums, const Place& place) {
    sums.ranges += place.path->count;
    if (is_outermost(place)) sums.duration_ns = wrapped_sum(sums.duration_ns, place.path->total_ns);
    add_name(*place.path);
  }
  void push_sums(int64_t span, bool of_unit, const Sums& sums) {
    names_.append_top(decided_.top);
    decided_.sums.push_back({number_, span, of_unit ? 1 : 0, sums.ranges, sums.duration_ns,
                             static_cast<int64_t>(decided_.top.size())});
  }

  // A range around a backward node counts as a part of that.
  void add_name(const Path& path) {
    names_.add(path.shown, path.shown == path.name ? path.count : 0, path.self_ns);
  }

  void add_names_of_unit() {
    for (const Place& place : places_) add_name(*place.path);
    for (const uint32_t each : kept_) {
      const Range& one = unit_->range(each);
      const int64_t self_ns =
          wrapped_difference(one.duration_ns, unit_->kept(each).folded.children_ns);
      names_.add(one.shown, 1, (one.flags & kOverlapping) != 0 ? 0 : self_ns);
    }
  }

  // Whether it lies in nothing else that these sums are of.
  bool is_outermost(const Place& place) const {
    return place.above == kNone || places_[static_cast<size_t>(place.above)].is_kept;
  }

  // Where the calls of several classes differ in numbers alone, as in a sequence of layers, those
  // tell nothing of a class.
  uint32_t module_of(const Place& place) const {
    const Path& path = *place.path;
    if (path.module != kSeveral) return path.module;
    const auto is_like = [&](uint32_t name, uint32_t modules) {
      return name != path.name && modules == path.modules;
    };
    for (const Path* each = around(place).first_below; each != nullptr; each = each->next) {
      if (is_like(each->name, each->modules)) return 0;
    }
    const uint64_t holder =
        place.holder == kNone ? 0 : unit_->range(kept_[static_cast<size_t>(place.holder)]).event_id;
    for (size_t kept = 0; place.above == kNone && kept < kept_.size(); ++kept) {
      const Range& one = unit_->range(kept_[kept]);
      if (unit_->kept(kept_[kept]).parent == holder && is_like(one.name, one.modules)) return 0;
    }
    return path.modules == kSeveral ? 0 : path.modules;
  }

  // The path that a path hangs below.
  const Path& around(const Place& place) const {
    if (place.above != kNone) return *places_[static_cast<size_t>(place.above)].path;
    return place.holder == kNone
               ? *unit_->folded().root
               : *unit_->kept(kept_[static_cast<size_t>(place.holder)]).folded.root;
  }

  const uint64_t key_;
  SentRanges& sent_;
  Decided& decided_;
  NameTimes names_;  // of one tree, or of all of the unit

  // The unit that is told, and what was told of it.
  const Unit* unit_ = nullptr;
  const UnitToDecide* wanted_ = nullptr;
  uint32_t number_ = 0;
  int64_t first_kept_ = 0;      // of its ranges, in `decided_`
  int64_t first_span_ = kNone;  // the number of the span that is seen first, how long it took
  int64_t first_ns_ = 0;
  std::vector<uint32_t> kept_;   // its places of these
  std::vector<Place> places_;    // of its paths
  std::vector<Place> waiting_;   // to be placed, the next one last
  std::vector<Extent> extents_;  // of its summaries
};

}  // namespace recfn::stage
