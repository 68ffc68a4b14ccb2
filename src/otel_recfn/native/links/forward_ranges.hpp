// The forward ranges that backward ones may belong to. Python's `batches/links.py` says what belongs to what.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "memory/unfilled.hpp"

namespace recfn {

struct ForwardRange {
  uint64_t key;  // its thread's number and its sequence number, laid out as an event id
  uint64_t event_id, root;
  int64_t start_ns, end_ns;
  uint32_t track, context;  // in tables of whoever looks for it
  bool matched = false;     // a backward range belongs to it
};

class ForwardRanges {
 public:
  // In place of one with that key, unless this one started earlier.
  void remember(const ForwardRange& range);
  // For a backward range. Null where none is known.
  const ForwardRange* match(uint64_t key);
  // Forgets so many, those that started first; only matched ones, if it is said.
  void forget_first(size_t count, bool only_matched);

  size_t size() const { return ranges_.size(); }
  size_t matched() const { return matched_; }
  UnfilledVector<ForwardRange>& all() { return ranges_; }

 private:
  // A thread's sequence numbers count up: those of one line stand together, and mostly come one after the other.
  static constexpr unsigned kLineBits = 3;
  using Line = std::array<uint32_t, size_t{1} << kLineBits>;  // places in `ranges_` from 1 on; 0: no range

  static size_t slot_of(uint64_t key) { return key & ((size_t{1} << kLineBits) - 1); }
  Line* find_line(uint64_t key);
  Line& made_line(uint64_t key);

  UnfilledVector<ForwardRange> ranges_;
  size_t matched_ = 0;  // of these
  std::unordered_map<uint64_t, Line> lines_;
  uint64_t last_ = 0;  // the line that was found last, if any was
  Line* last_line_ = nullptr;
};

}  // namespace recfn
