// What spans say of a unit that is decided: which of its ranges are kept, which sums of the others stand on which span, and which
// of their paths have a span of their own, a summary.
//
// What is folded directly into a unit whose span can't say so stands on a summary of its path with the most time. What is left of
// a unit's budget goes to further summaries, those of the paths with the most time, if they took long enough.
//
// A summary is as long as its ranges were together and begins where the first of them began, moved so that it stays within its
// parent; where ranges ran beside each other for longer than the parent, it is cut there. That of a single range, which lies in a
// summary, says what its row says.
//
// The span that a reader sees first in a unit of which something was folded, the longest one, names what took most of the time of
// the whole unit; other spans what took most of what was folded into them.
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
  uint64_t parent;  // the event id of the range that its span is a child of; 0: of the span above its unit
  LinkRow link;
  int64_t row, folded;  // its number; how many ranges were folded into it
  int64_t start_ns, end_ns;
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
  int64_t row;         // of a single range; -1: it stands for several, or the row is forgotten
  uint32_t unit, name, digits;
  uint32_t module;  // where in its model that is called, maybe with `*` for numbers; 0: that isn't the same for all
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
    kept_ = unit.outermost_first(), first_kept_ = decided_.kept.size(), first_sums_ = decided_.sums.size();
    left_ = wanted.budget - static_cast<int64_t>(kept_.size());
    places_.clear(), extents_.clear(), top_.clear();
    for (const uint32_t each : kept_) {
      const Range& one = unit.range(each);
      const int64_t end_ns = wrapped_sum(one.start_ns, one.duration_ns);
      decided_.kept.push_back({unit.kept(each).parent, {0, kNoTrace}, one.row, 0, one.start_ns, end_ns, number_});
    }
    tell_tree(unit.folded(), kNone);
    for (size_t holder = 0; holder < kept_.size(); ++holder) {
      tell_tree(unit.kept(kept_[holder]).folded, static_cast<int64_t>(holder));
    }
    tell_names();
    choose_further();
    for (size_t at = first_sums_; at < decided_.sums.size(); ++at) {
      const SumsRow& sums = decided_.sums[at];
      if (sums.holder != kNone) decided_.kept[static_cast<size_t>(sums.holder)].folded = sums.ranges;
    }
    for (const uint32_t each : kept_) sent_.add(unit.range(each).event_id);
  }

 private:
  static constexpr int64_t kNone = -1;

  // A path, after the one that it lies in; of several in one the one with the most time first.
  struct Place {
    const Path* path;
    int64_t holder;   // which of the unit's kept ranges it was folded into, or none
    int64_t above;    // the place that it lies in, or none
    int64_t summary;  // its own, or none
    size_t sums;      // that it is a part of
    bool is_other;    // it is a part of what no path was left for
    bool is_shown;    // it may have a summary: it is no part of that, nor of what is around it
  };
  struct Extent {
    uint64_t span_id;
    int64_t start_ns, end_ns;
  };
  void tell_tree(const FoldedTree& tree, int64_t holder) {
    const size_t first = places_.size();
    place_all(tree, holder);
    if (places_.size() == first) return;
    const size_t longest = sum_up(first, holder);
    if (holder == kNone && wanted_->tells_itself == 0) {
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
    for (const Path* each = path.first_below; each != nullptr; each = each->next) {
      const bool is_other = each->name == kOther || (above != kNone && places_[static_cast<size_t>(above)].is_other);
      waiting_.push_back({each, holder, above, kNone, decided_.sums.size(), is_other, !is_other && !is_of_node(*each, holder, above)});
    }
    if (path.below <= 1) return;
    std::sort(waiting_.begin() + first, waiting_.end(), [](const Place& one, const Place& other) {
      const Path &first_path = *one.path, &second_path = *other.path;
      if (first_path.total_ns != second_path.total_ns) return first_path.total_ns < second_path.total_ns;
      return first_path.name > second_path.name;
    });
  }

  // Whether the span of what is around it tells of it: it is a backward node there, or the range around the node that this tells of.
  bool is_of_node(const Path& path, int64_t holder, int64_t above) const {
    if (above != kNone || holder == kNone) return path.home != &path;
    const Range& around = unit_->range(kept_[static_cast<size_t>(holder)]);
    return is_node_of(around, path.name) || (around.shown != around.name && path.name == around.name);
  }

  // Of a tree, from this place on. Returns the path directly in the holder with the most time. What is told as other ranges only
  // where there is nothing else.
  size_t sum_up(size_t first, int64_t holder) {
    int64_t count = 0, duration_ns = 0, most_ns = INT64_MIN;
    size_t longest = first;
    names_.clear(places_.size() - first);
    for (size_t place = first; place < places_.size(); ++place) {
      const Path& path = *places_[place].path;
      count += path.count;
      add_name(names_, path);
      if (is_outermost(place)) duration_ns = wrapped_sum(duration_ns, path.total_ns);
      if (places_[place].above != kNone) continue;
      const int64_t time_ns = path.name == kOther ? -1 : path.total_ns;
      if (time_ns > most_ns) most_ns = time_ns, longest = place;
    }
    names_.append_top(top_);
    push_sums(holder, count, duration_ns);
    return longest;
  }

  void push_sums(int64_t holder, int64_t count, int64_t duration_ns) {
    const int64_t of_all = holder == kNone ? kNone : static_cast<int64_t>(first_kept_) + holder;
    decided_.sums.push_back({number_, of_all, count, duration_ns, static_cast<int64_t>(top_.size())});
  }

  // A range around a backward node counts as a part of that.
  static void add_name(NameTimes& names, const Path& path) {
    names.add(path.shown, path.shown == path.name ? path.count : 0, path.self_ns);
  }

  // What no path was left for lies directly in the holder where its time is counted.
  bool is_outermost(size_t place) const {
    const int64_t above = places_[place].above;
    if (above == kNone) return true;
    const Place& around = places_[static_cast<size_t>(above)];
    return around.above == kNone && around.path->name == kOther;
  }

  // Of each of the sums, and of the unit in place of those of its first span.
  void tell_names() {
    if (decided_.sums.size() == first_sums_) return;
    const size_t first = sums_of_first_span();
    size_t begin = 0;
    for (size_t at = first_sums_; at < decided_.sums.size(); ++at) {
      const auto end = static_cast<size_t>(decided_.sums[at].top_end);
      if (at == first) {
        sum_up_unit(), names_.append_top(decided_.top);
      } else {
        for (size_t name = begin; name < end; ++name) decided_.top.push_back(top_[name]);
      }
      decided_.sums[at].top_end = static_cast<int64_t>(decided_.top.size());
      begin = end;
    }
  }

  // Those that the span tells that is seen first: the root of ours above the unit, or the longest one directly in it.
  size_t sums_of_first_span() {
    const bool tells_itself = wanted_->tells_itself != 0, has_own = decided_.sums[first_sums_].holder == kNone;
    if (has_own && tells_itself) return first_sums_;
    int64_t first = kNone, most_ns = has_own ? decided_.summaries.rows[decided_.summaries.rows.size() - 1].total_ns : INT64_MIN;
    for (size_t holder = 0; holder < kept_.size(); ++holder) {
      if (unit_->kept(kept_[holder]).parent != 0 || unit_->range(kept_[holder]).duration_ns <= most_ns) continue;
      first = static_cast<int64_t>(holder), most_ns = unit_->range(kept_[holder]).duration_ns;
    }
    if (first == kNone) return first_sums_;
    const int64_t of_all = static_cast<int64_t>(first_kept_) + first;
    for (size_t at = first_sums_; at < decided_.sums.size(); ++at) {
      if (decided_.sums[at].holder == of_all) return at;
    }
    push_sums(first, 0, 0);  // it names the unit's, and nothing was folded into it
    return decided_.sums.size() - 1;
  }

  void sum_up_unit() {
    names_.clear(places_.size() + kept_.size());
    for (const Place& place : places_) add_name(names_, *place.path);
    for (const uint32_t each : kept_) {
      const Range& one = unit_->range(each);
      const int64_t self_ns = wrapped_difference(one.duration_ns, unit_->kept(each).folded.children_ns);
      names_.add(one.shown, 1, (one.flags & kOverlapping) != 0 ? 0 : self_ns);
    }
  }

  // The paths that the budget is left for and that took long enough, each after what it lies in.
  void choose_further() {
    const auto budget = static_cast<size_t>(std::max<int64_t>(0, left_));
    std::vector<size_t> chosen;
    for (size_t at = 0; at < places_.size() && budget > 0; ++at) {
      const Place& place = places_[at];
      if (place.summary != kNone || !place.is_shown || place.path->in_compilation) continue;
      if (place.path->total_ns >= unit_->least_told_ns()) chosen.push_back(at);
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

  // A single range is as good as kept.
  void summarize(Place& place, int64_t sums, Summaries& told) {
    const Path& path = *place.path;
    const int64_t row = path.count == 1 ? path.first_row : -1;
    if (row >= 0) --decided_.sums[place.sums].ranges;
    const Extent around = extent_around(place);
    const int64_t duration = std::max<int64_t>(0, std::min(path.total_ns, wrapped_difference(around.end_ns, around.start_ns)));
    const int64_t start = std::min(std::max(path.first_ns, around.start_ns), around.end_ns - duration);
    const Extent own{span_id_of(path.first_id, key_), start, start + duration};
    const unsigned digits = path.histogram.each([&told](uint32_t count) { told.counts.push_back(count); });
    told.rows.push_back({own.span_id, around.span_id, path.first_id, path.count, path.total_ns, path.shortest_ns, path.longest_ns,
                         own.start_ns, own.end_ns, path.cpu_time_ns, sums, static_cast<int64_t>(told.counts.size()),
                         row, number_, path.shown, digits, module_of(place)});
    place.summary = static_cast<int64_t>(extents_.size());
    extents_.push_back(own);
  }

  // Where the calls of several classes differ in numbers alone, as in a sequence of layers, those tell nothing of a class.
  uint32_t module_of(const Place& place) const {
    const Path& path = *place.path;
    if (path.module != kSeveral) return path.module;
    const auto is_like = [&](uint32_t name, uint32_t modules) { return name != path.name && modules == path.modules; };
    for (const Path* each = around(place).first_below; each != nullptr; each = each->next) {
      if (is_like(each->name, each->modules)) return 0;
    }
    const uint64_t holder = place.holder == kNone ? 0 : unit_->range(kept_[static_cast<size_t>(place.holder)]).event_id;
    for (size_t kept = 0; place.above == kNone && kept < kept_.size(); ++kept) {
      const Range& one = unit_->range(kept_[kept]);
      if (unit_->kept(kept_[kept]).parent == holder && is_like(one.name, one.modules)) return 0;
    }
    return path.modules == kSeveral ? 0 : path.modules;
  }

  // What a path hangs below.
  const Path& around(const Place& place) const {
    if (place.above != kNone) return *places_[static_cast<size_t>(place.above)].path;
    return place.holder == kNone ? *unit_->folded().root : *unit_->kept(kept_[static_cast<size_t>(place.holder)]).folded.root;
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
  NameTimes names_;  // of one tree, or of all of the unit

  // Of the unit that is told.
  const Unit* unit_ = nullptr;
  const UnitToDecide* wanted_ = nullptr;
  uint32_t number_ = 0;
  size_t first_kept_ = 0;        // of its ranges, in `decided_`
  size_t first_sums_ = 0;        // of its sums there
  std::vector<uint32_t> kept_;   // its places of these
  std::vector<Place> places_;    // of its paths
  std::vector<Place> waiting_;   // to be placed, the next one last
  std::vector<Extent> extents_;  // of its summaries
  std::vector<TopRow> top_;      // the names of its sums, each one's up to its `top_end`
  int64_t left_ = 0;             // of its budget
};

}  // namespace recfn::stage
