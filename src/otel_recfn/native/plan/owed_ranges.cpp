#include "plan/owed_ranges.hpp"

namespace recfn {

IdSet::IdSet(const ColumnView<uint64_t>& ids) {
  runs_.reserve(kMostRuns);
  if (find_runs(ids)) {
    for (Py_ssize_t at = 0; at < ids.size(); ++at) {
      if (!last_->covers(ids[at])) last_ = run_of(ids[at]);
      is_there_[place_of(ids[at])] = 1;
    }
    return;
  }
  runs_.clear();
  ordered_.reserve(static_cast<size_t>(ids.size()));
  for (Py_ssize_t at = 0; at < ids.size(); ++at) ordered_.push_back(ids[at]);
  std::sort(ordered_.begin(), ordered_.end());
}

bool IdSet::has(uint64_t id) {
  if (runs_.empty()) return std::binary_search(ordered_.begin(), ordered_.end(), id);
  if (!last_->covers(id)) {
    Run* run = run_of(id);
    if (run == nullptr || !run->covers(id)) return false;
    last_ = run;
  }
  return is_there_[place_of(id)] != 0;
}

void IdSet::Run::widen(uint64_t id) {
  const uint64_t last = std::max(first + (ids - 1), id);
  first = std::min(first, id), ids = last - first + 1;
}

bool IdSet::find_runs(const ColumnView<uint64_t>& ids) {
  for (Py_ssize_t at = 0; at < ids.size(); ++at) {
    const uint64_t id = ids[at];
    if (last_ == nullptr || !last_->is_of_thread(id)) last_ = run_of(id);
    if (last_ == nullptr) {
      if (runs_.size() == kMostRuns) return false;
      runs_.push_back({id, 1, 0});
      last_ = &runs_.back();
    }
    last_->widen(id);
  }
  const size_t most = kPlacesOfAnId * static_cast<size_t>(ids.size());
  size_t places = 0;
  for (Run& run : runs_) {
    run.begin = places;
    if (run.ids > most - places) return false;
    places += static_cast<size_t>(run.ids);
  }
  is_there_.resize(places);
  return !runs_.empty();
}

IdSet::Run* IdSet::run_of(uint64_t id) {
  const auto found = std::find_if(runs_.begin(), runs_.end(), [id](const Run& run) { return run.is_of_thread(id); });
  return found == runs_.end() ? nullptr : &*found;
}

Ids still_owed(const ColumnView<uint64_t>& before, const ColumnView<uint64_t>& around, IdSet& came) {
  Ids all;
  uint64_t last = 0;  // of an outermost row
  for (Py_ssize_t at = 0; at < around.size(); ++at) {
    const uint64_t id = around[at];
    if (id == last) continue;  // siblings mostly stand together
    last = id;
    if (id != 0 && !came.has(id)) all.push_back(id);
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  const size_t newly = all.size();
  for (Py_ssize_t at = 0; at < before.size(); ++at) {
    const bool is_known = std::binary_search(all.begin(), all.begin() + static_cast<ptrdiff_t>(newly), before[at]);
    if (!is_known && !came.has(before[at])) all.push_back(before[at]);
  }
  return all;
}

}  // namespace recfn
