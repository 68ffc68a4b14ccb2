// Which forward range a backward one belongs to: that of the same sequence number, on the thread
// that ran the forward. `sinks/chrome/encoder.py` says what belongs to what.
//
//     forward     thread 1, sequence number 7   ──► remembered by both
//     backward    forward thread 1, number 7    ──► finds it, of several the one that started last
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "columns/column_view.hpp"
#include "model/events.hpp"
#include "model/numbers.hpp"
#include "stage/stage_rows.hpp"

namespace recfn::stage {

// The forward ranges that backward ones may belong to. Label: what whoever asks remembers of a
// range. A thread's sequence numbers count up: each has a place of its own until all are taken,
// then those of the oldest ones.
template <typename Label>
class ForwardRanges {
 public:
  static constexpr size_t kMaxRanges = 1 << 18;  // several steps of a large model

  struct Forward {
    uint64_t key;  // its thread's id and its sequence number, laid out as an event id
    uint64_t event_id;
    int64_t start_ns;
    Label label;
  };

  // Remembers the forward ranges among so many rows, and tells `found(at, range)` of those of its
  // backward ranges.
  template <typename Threads, typename RowAt, typename LabelAt, typename Found>
  void link(const BatchRows& rows, const Threads& threads, size_t count, RowAt row_at,
            LabelAt label_at, Found found) {
    bool any_backward = false;
    for (size_t at = 0; at < count; ++at) {
      const Py_ssize_t row = row_at(at);
      any_backward |= rows.is_backward(row);
      if (!rows.is_forward(row)) continue;
      const uint64_t key = key_of(threads[rows.thread[row]], rows.sequence_nr[row]);
      remember({key, rows.event_id[row], rows.start_ns[row], label_at(at)});
    }
    for (size_t at = 0; at < count && any_backward; ++at) {
      const Py_ssize_t row = row_at(at);
      if (!rows.is_backward(row)) continue;
      const Forward* const range =
          match(key_of(rows.forward_thread_id[row], rows.sequence_nr[row]));
      if (range != nullptr) found(at, *range);
    }
  }

 private:
  // In place of another one, unless that has the same key and started later.
  void remember(const Forward& range) {
    while (slot_of(range.key).event_id != 0 && slot_of(range.key).key != range.key &&
           ranges_.size() < kMaxRanges) {
      grow();
    }
    Forward& place = slot_of(range.key);
    if (place.key != range.key || range.start_ns >= place.start_ns) place = range;
  }

  // For a backward range. Null where none is known.
  const Forward* match(uint64_t key) {
    const Forward& range = slot_of(key);
    return range.event_id != 0 && range.key == key ? &range : nullptr;
  }

  static uint64_t key_of(uint64_t thread_id, int64_t sequence_nr) {
    return thread_id << kOrdinalBits | static_cast<uint64_t>(sequence_nr);
  }

  Forward& slot_of(uint64_t key) {
    return ranges_[(scrambled(key >> kOrdinalBits) + key) & (ranges_.size() - 1)];
  }

  void grow() {
    std::vector<Forward> before(2 * ranges_.size());
    ranges_.swap(before);
    for (const Forward& range : before) {
      if (range.event_id != 0) slot_of(range.key) = range;
    }
  }

  std::vector<Forward> ranges_ = std::vector<Forward>(64);
};

}  // namespace recfn::stage
