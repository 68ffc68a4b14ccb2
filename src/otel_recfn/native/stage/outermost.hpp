// Outermost ranges that were announced and have not come yet.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/unfilled.hpp"
#include "stage/stage_rows.hpp"

namespace recfn::stage {

// Event ids, to ask for many of them. A thread's count up, so that mostly nearly all between its smallest and its largest one are
// there: each of these has a place of its own. Others are put in order.
class IdSet {
 public:
  explicit IdSet(UnfilledVector<uint64_t> ids);

  bool has(uint64_t id);

 private:
  // The ids of a thread, or those from its smallest to its largest one.
  struct Run {
    uint64_t first = 0, ids = 0;
    size_t begin = 0;  // of its places

    bool covers(uint64_t id) const { return id - first < ids; }
    bool is_of_thread(uint64_t id) const;
    void widen(uint64_t id);
  };
  static constexpr size_t kMostRuns = 8;
  static constexpr size_t kPlacesOfAnId = 16;

  // False where there are too many, or too few ids between the first and the last one.
  bool find_runs();
  Run* run_of(uint64_t id);
  size_t place_of(uint64_t id) const { return last_->begin + static_cast<size_t>(id - last_->first); }

  UnfilledVector<uint64_t> ids_;  // in order where there are no runs
  std::vector<Run> runs_;
  Run* last_ = nullptr;  // that was asked for
  std::vector<uint8_t> is_there_;
};

class OpenOutermost {
 public:
  // But for the program's steps.
  void note(const BatchRows& rows, const AnnouncedRows& announced);
  // Whether it is open, and spans below it were handed on: it has to be a span when it comes.
  bool owe(uint64_t event_id);

  // What is owed, in ascending order.
  const std::vector<uint64_t>& owed() const { return owed_; }
  // They have come.
  void forget_owed(const BatchRows& rows);

 private:
  std::vector<uint64_t> open_, owed_;
};

}  // namespace recfn::stage
