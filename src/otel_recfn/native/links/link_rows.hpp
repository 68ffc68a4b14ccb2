// The rows of a batch that links lead from and to.
#pragma once
#include "columns/column_view.hpp"
#include "cpython/python.hpp"
#include "links/forward_ranges.hpp"
#include "model/events.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace recfn {

struct ForwardRange {
  uint64_t key;
  uint64_t event_id;
  int64_t start_ns, end_ns;
  uint32_t track;  // in a table of whoever looks for it
  bool matched = false;
};

// The columns of a batch that are read here.
class LinkRows {
 public:
  bool take(PyObject* batch);

  Py_ssize_t size() const { return kind_.size(); }
  bool is_forward(Py_ssize_t row) const { return has_number(row) && !is_of_backward(row) && forward_thread_id_[row] == 0; }
  bool is_backward(Py_ssize_t row) const { return has_number(row) && is_of_backward(row) && forward_thread_id_[row] != 0; }
  uint32_t track(Py_ssize_t row) const { return thread_[row]; }
  uint64_t forward_thread_id(Py_ssize_t row) const { return forward_thread_id_[row]; }
  uint64_t key(Py_ssize_t row, uint64_t thread) const {
    return thread << kOrdinalBits | static_cast<uint64_t>(sequence_nr_[row]);
  }
  ForwardRange forward(Py_ssize_t row, uint64_t thread, uint32_t track) const {
    return {key(row, thread), event_id_[row], start_ns_[row], end_ns_[row], track};
  }

 private:
  bool has_number(Py_ssize_t row) const {
    const int64_t number = sequence_nr_[row];
    return number >= 0 && number >> kOrdinalBits == 0 && kind_[row] == kRangeEvent;
  }
  bool is_of_backward(Py_ssize_t row) const { return scope_[row] == kBackwardFunctionScope; }

  ColumnView<uint8_t> kind_, scope_;
  ColumnView<int64_t> sequence_nr_, start_ns_, end_ns_;
  ColumnView<uint64_t> event_id_, forward_thread_id_;
  ColumnView<uint32_t> thread_;
};

// What these rows index, each once and in ascending order: forward ones tracks, backward ones thread ids.
struct UsedByLinks {
  std::vector<uint32_t> tracks;
  std::vector<uint64_t> thread_ids;

  // False where a row indexes none of so many.
  bool find(const LinkRows& rows, size_t track_count);
};

}  // namespace recfn
