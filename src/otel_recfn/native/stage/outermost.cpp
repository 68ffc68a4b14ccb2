#include "stage/outermost.hpp"

#include <algorithm>
#include <utility>

#include "model/events.hpp"

namespace recfn::stage {

bool IdSet::Run::is_of_thread(uint64_t id) const { return (id ^ first) >> kOrdinalBits == 0; }

void IdSet::Run::widen(uint64_t id) {
  const uint64_t last = std::max(first + (ids - 1), id);
  first = std::min(first, id), ids = last - first + 1;
}

IdSet::IdSet(UnfilledVector<uint64_t> ids) : ids_(std::move(ids)) {
  runs_.reserve(kMostRuns);
  if (find_runs()) {
    for (const uint64_t id : ids_) {
      if (!last_->covers(id)) last_ = run_of(id);
      is_there_[place_of(id)] = 1;
    }
  } else {
    runs_.clear();
    std::sort(ids_.begin(), ids_.end());
  }
}

bool IdSet::has(uint64_t id) {
  if (runs_.empty()) return std::binary_search(ids_.begin(), ids_.end(), id);
  if (!last_->covers(id)) {
    Run* run = run_of(id);
    if (run == nullptr || !run->covers(id)) return false;
    last_ = run;
  }
  return is_there_[place_of(id)] != 0;
}

bool IdSet::find_runs() {
  for (const uint64_t id : ids_) {
    if (last_ == nullptr || !last_->is_of_thread(id)) last_ = run_of(id);
    if (last_ == nullptr) {
      if (runs_.size() == kMostRuns) return false;
      runs_.push_back({id, 1, 0});
      last_ = &runs_.back();
    }
    last_->widen(id);
  }
  const size_t most = kPlacesOfAnId * ids_.size();
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

void OpenOutermost::note(const BatchRows& rows, const AnnouncedRows& announced) {
  for (Py_ssize_t at = 0; at < announced.size(); ++at) {
    if (announced.source[at] != kStepSource) open_.push_back(announced.event_id[at]);
  }
  if (open_.empty()) return;
  UnfilledVector<uint64_t> ended;
  for (Py_ssize_t row = 0; row < rows.size(); ++row) {
    if (rows.is_outermost(row)) ended.push_back(rows.event_id[row]);
  }
  IdSet came(std::move(ended));
  open_.erase(std::remove_if(open_.begin(), open_.end(), [&came](uint64_t id) { return came.has(id); }), open_.end());
  std::sort(open_.begin(), open_.end());
  open_.erase(std::unique(open_.begin(), open_.end()), open_.end());
}

bool OpenOutermost::owe(uint64_t event_id) {
  if (!std::binary_search(open_.begin(), open_.end(), event_id)) return false;
  const auto place = std::lower_bound(owed_.begin(), owed_.end(), event_id);
  if (place == owed_.end() || *place != event_id) owed_.insert(place, event_id);
  return true;
}

void OpenOutermost::forget_owed(const BatchRows& rows) {
  for (Py_ssize_t row = 0; row < rows.size() && !owed_.empty(); ++row) {
    if (!rows.is_outermost(row)) continue;
    const auto place = std::lower_bound(owed_.begin(), owed_.end(), rows.event_id[row]);
    if (place != owed_.end() && *place == rows.event_id[row]) owed_.erase(place);
  }
}

}  // namespace recfn::stage
