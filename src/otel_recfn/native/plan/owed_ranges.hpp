// Which ranges have begun and have not come yet. Python's `batches/owed.py` says what is what.
#pragma once
#include "columns/column_view.hpp"
#include "cpython/python.hpp"
#include "model/events.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace recfn {

using Ids = std::vector<uint64_t>;

// Event ids, to ask for many of them. A thread's count up, so that mostly nearly all between its smallest and its largest one are
// there: each of these has a place of its own. Others are put in order.
class IdSet {
 public:
  explicit IdSet(const ColumnView<uint64_t>& ids);

  bool has(uint64_t id);

 private:
  // The ids of a thread, or those from its smallest to its largest one.
  struct Run {
    uint64_t first = 0, ids = 0;
    size_t begin = 0;  // of its places

    bool covers(uint64_t id) const { return id - first < ids; }
    bool is_of_thread(uint64_t id) const { return (id ^ first) >> kOrdinalBits == 0; }
    void widen(uint64_t id);
  };
  static constexpr size_t kMostRuns = 8;
  static constexpr size_t kPlacesOfAnId = 16;

  // False where there are too many, or too few ids between the first and the last one.
  bool find_runs(const ColumnView<uint64_t>& ids);
  Run* run_of(uint64_t id);
  size_t place_of(uint64_t id) const { return last_->begin + static_cast<size_t>(id - last_->first); }

  std::vector<Run> runs_;  // none where ids are put in order
  Run* last_ = nullptr;    // that was asked for
  std::vector<uint8_t> is_there_;
  Ids ordered_;
};

// Of those that were owed and those around rows, what has not come, each once: first what wasn't owed before, in ascending order,
// then what was, as it stood.
Ids still_owed(const ColumnView<uint64_t>& before, const ColumnView<uint64_t>& around, IdSet& came);

}  // namespace recfn
