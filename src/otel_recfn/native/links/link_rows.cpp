#include "links/link_rows.hpp"

#include <algorithm>

#include "columns/equally_long.hpp"
#include "columns/ordered.hpp"

namespace recfn {
bool LinkRows::take(PyObject* batch) {
  return kind_.take(batch, "kind") && scope_.take(batch, "scope") && sequence_nr_.take(batch, "sequence_nr") &&
         start_ns_.take(batch, "start_ns") && end_ns_.take(batch, "end_ns") && event_id_.take(batch, "event_id") &&
         forward_thread_id_.take(batch, "forward_thread_id") && thread_.take(batch, "thread") &&
         equally_long({kind_.size(), scope_.size(), sequence_nr_.size(), start_ns_.size(), end_ns_.size(), event_id_.size(),
                       forward_thread_id_.size(), thread_.size()});
}

bool UsedByLinks::find(const LinkRows& rows, size_t track_count) {
  std::vector<uint8_t> track_used(track_count);
  for (Py_ssize_t row = 0; row < rows.size(); ++row) {
    if (rows.is_forward(row)) {
      if (rows.track(row) >= track_count) return false;
      track_used[rows.track(row)] = 1;
    } else if (rows.is_backward(row) && (thread_ids.empty() || thread_ids.back() != rows.forward_thread_id(row))) {
      thread_ids.push_back(rows.forward_thread_id(row));
    }
  }
  tracks = marked_places(track_used);
  std::sort(thread_ids.begin(), thread_ids.end());
  thread_ids.erase(std::unique(thread_ids.begin(), thread_ids.end()), thread_ids.end());
  return true;
}

}  // namespace recfn
