#include "stage/stage.hpp"

#include <algorithm>
#include <utility>

#include "model/events.hpp"
#include "model/span_id.hpp"

namespace recfn::stage {
namespace {

// The planned rows of a batch, as folding reads them.
class RangesOfBatch {
 public:
  RangesOfBatch(const ToAdd& batch, const PlannedRows& planned, const std::vector<uint64_t>& owed, int64_t first_row)
      : rows_(batch.rows), names_(batch.known.names), planned_(planned), owed_(owed), first_row_(first_row) {}

  std::ptrdiff_t size() const { return static_cast<std::ptrdiff_t>(planned_.row.size()); }
  uint32_t unit_of(std::ptrdiff_t at) const {
    return planned_.units[static_cast<size_t>(planned_.unit[static_cast<size_t>(at)])].number;
  }

  folding::Range operator[](std::ptrdiff_t at) const {
    const auto row = static_cast<Py_ssize_t>(planned_.row[static_cast<size_t>(at)]);
    const int64_t start_ns = rows_.start_ns[row], duration_ns = wrapped_difference(rows_.end_ns[row], start_ns);
    const auto name = static_cast<Py_ssize_t>(rows_.name[row]);
    return {rows_.event_id[row], planned_.parent[static_cast<size_t>(at)], start_ns, std::max<int64_t>(0, duration_ns),
            names_[name], flags(row), first_row_ + at};
  }

 private:
  // What was open when recording ended counts as shown: only an end says whether it was.
  uint32_t flags(Py_ssize_t row) const {
    uint32_t flags = rows_.flags[row];
    if ((flags & kPartial) != 0 || is_owed(rows_.event_id[row])) flags |= kShown;
    return rows_.sequence_nr[row] >= 0 && !rows_.is_of_backward(row) ? flags | folding::kLinkable : flags;
  }
  bool is_owed(uint64_t event_id) const {
    return !owed_.empty() && std::binary_search(owed_.begin(), owed_.end(), event_id);
  }

  const BatchRows& rows_;
  const ColumnView<uint32_t>& names_;
  const PlannedRows& planned_;
  const std::vector<uint64_t>& owed_;
  const int64_t first_row_;
};

uint32_t place_of(const SpanAbove& above, std::vector<TraceRow>& traces) {
  for (size_t place = traces.size(); place-- > 0;) {  // most links lead into the same trace
    if (traces[place].low == above.trace_low && traces[place].high == above.trace_high) return static_cast<uint32_t>(place);
  }
  traces.push_back({above.trace_high, above.trace_low});
  return static_cast<uint32_t>(traces.size() - 1);
}

}  // namespace

PlannedRows Stage::add(const ToAdd& batch, bool folds) {
  outermost_.note(batch.rows, batch.announced);
  PlannedRows planned(batch.rows, batch.announced, batch.known, numbers_);
  planned.plan(batch.in_order);
  linked_.add(batch.rows, batch.known, planned, next_row_);
  if (folds) fold_.add(RangesOfBatch(batch, planned, outermost_.owed(), next_row_));
  next_row_ += static_cast<int64_t>(planned.row.size());
  outermost_.forget_owed(batch.rows);
  if (folds && linked_.has_many()) kept();
  if (!folds) {
    for (const UnitInBatch& unit : planned.units) numbers_.forget(unit.above);
  }
  return planned;
}

UnfilledVector<LinkRow> Stage::links_of(const PlannedRows& planned, uint64_t key, std::vector<TraceRow>& traces) {
  UnfilledVector<LinkRow> links;
  const int64_t first_row = next_row_ - static_cast<int64_t>(planned.row.size());
  for (int64_t row = first_row; row < next_row_ && linked_.any(); ++row) {
    const RowLink* const link = linked_.find(row);
    const uint64_t span_id = link == nullptr ? 0 : span_id_of(link->event_id, key);
    links.push_back({span_id, link == nullptr ? kNoTrace : place_of(link->above, traces)});
  }
  linked_.keep({});
  return links;
}

std::vector<int64_t> Stage::kept() {
  std::vector<int64_t> rows = fold_.kept();
  linked_.keep(rows);
  return rows;
}

Decided Stage::decide(const TableView<UnitToDecide>& units, uint64_t key) {
  std::vector<folding::ToFinish> wanted;
  for (const UnitToDecide& one : units) {
    wanted.push_back({static_cast<uint32_t>(one.number), one.goes_on != 0, one.budget, one.least_ns()});
  }
  const folding::FinishedColumns done = fold_.finish(wanted);
  FoldedTeller teller(done, units);
  teller.tell();
  Decided decided;
  add_kept(done, decided);
  for (const SumsRow& sums : teller.sums) {
    if (sums.holder >= 0) decided.kept[static_cast<size_t>(sums.holder)].folded = sums.ranges;
  }
  add_summaries(done, teller.told, units, key, decided);
  decided.sums = std::move(teller.sums), decided.top = std::move(teller.top);
  note_telling(done, units, key, decided);
  for (KeptSpanRow& kept : decided.kept) kept.link = link_of(kept.row, decided.traces);
  for (const UnitToDecide& one : units) {
    if (one.goes_on == 0) numbers_.forget(one.above);
  }
  return decided;
}

void Stage::add_kept(const folding::FinishedColumns& done, Decided& decided) {
  decided.kept.reserve(done.kept.size());
  for (const folding::KeptRow& kept : done.kept) {
    decided.kept.push_back({kept.parent, {0, kNoTrace}, kept.row, 0, static_cast<uint32_t>(kept.unit)});
  }
}

void Stage::add_summaries(const folding::FinishedColumns& done, const std::vector<ToldPath>& told_paths,
                          const TableView<UnitToDecide>& units, uint64_t key, Decided& decided) {
  for (const ToldPath& told : told_paths) {
    const folding::PathRow& path = done.paths[told.path];
    uint64_t parent_id = units[static_cast<size_t>(path.unit)].above.span_id;
    if (told.parent >= 0) {
      parent_id = span_id_of(done.paths[static_cast<size_t>(told.parent)].first_id, key);
    } else if (path.holder >= 0) {
      parent_id = span_id_of(done.kept[static_cast<size_t>(path.holder)].event_id, key);
    }
    const int64_t counts = told.path == 0 ? 0 : done.paths[told.path - 1].counts_end;
    decided.counts.insert(decided.counts.end(), done.counts.begin() + counts, done.counts.begin() + path.counts_end);
    decided.summaries.push_back({span_id_of(path.first_id, key), parent_id, path.first_id, path.count, path.total_ns,
                                 path.shortest_ns, path.longest_ns, told.start_ns, told.end_ns, told.sums,
                                 static_cast<int64_t>(decided.counts.size()), static_cast<uint32_t>(path.unit), path.name,
                                 path.digits});
  }
}

LinkRow Stage::link_of(int64_t row, std::vector<TraceRow>& traces) {
  const RowLink* const link = linked_.find(row);
  if (link == nullptr) return {0, kNoTrace};
  const uint64_t telling = linked_.telling().find(link->event_id);
  return {telling != 0 ? telling : link->above.span_id, place_of(link->above, traces)};
}

// The spans that tell of the ranges that others may link to.
void Stage::note_telling(const folding::FinishedColumns& done, const TableView<UnitToDecide>& units, uint64_t key,
                         const Decided& decided) {
  TellingSpans& telling = linked_.telling();
  std::vector<uint64_t> of_units;
  for (const UnitToDecide& unit : units) of_units.push_back(unit.above.span_id);
  for (const SummaryRow& summary : decided.summaries) {
    if (summary.sums >= 0) of_units[summary.unit] = summary.span_id;
  }
  for (const folding::LinkableRow& each : done.linkable) {
    const bool in_unit = each.holder < 0;
    const uint64_t holder = in_unit ? 0 : span_id_of(done.kept[static_cast<size_t>(each.holder)].event_id, key);
    telling.add(each.event_id, in_unit ? of_units[static_cast<size_t>(each.unit)] : holder);
  }
  for (const folding::KeptRow& kept : done.kept) {
    if ((kept.flags & folding::kLinkable) != 0) telling.add(kept.event_id, span_id_of(kept.event_id, key));
  }
}

}  // namespace recfn::stage
