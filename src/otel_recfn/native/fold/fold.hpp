// Open units, by number, for one thread at a time. Where it finds no memory, it is empty afterwards: trees may be half merged then.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fold/finished.hpp"
#include "fold/range.hpp"
#include "fold/unit.hpp"

namespace recfn::folding {

struct ToFinish {
  uint32_t unit;
  bool goes_on;
  int64_t budget, least_ns;  // shorter ranges are not kept
};

class Fold {
 public:
  explicit Fold(const Limits& limits) : limits_(limits) {}

  // All of these ranges, each to its unit.
  template <typename Rows>
  void add(const Rows& ranges) {
    or_empty([&] {
      for (std::ptrdiff_t at = 0; at < ranges.size(); ++at) add(ranges.unit_of(at), ranges[at]);
    });
  }

  // The numbers of the rows that may be kept yet, in ascending order.
  std::vector<int64_t> kept() const;

  // What became of these units' rows. They begin their next part or are forgotten.
  FinishedColumns finish(const std::vector<ToFinish>& units);

 private:
  template <typename Work>
  void or_empty(Work work) {
    try {
      work();
    } catch (...) {
      forget_all();
      throw;
    }
  }

  void add(uint32_t number, const Range& one) {
    if (last_ == nullptr || number != last_number_) find_or_make(number);
    last_->add(one);
  }
  FinishedColumns finished(const std::vector<ToFinish>& units);
  void forget_all();
  Unit* find(uint32_t number) const;
  void find_or_make(uint32_t number);

  const Limits limits_;
  Memory memory_;  // outlives the units
  std::unordered_map<uint32_t, std::unique_ptr<Unit>> units_;
  uint32_t last_number_ = 0;
  Unit* last_ = nullptr;
};

}  // namespace recfn::folding
