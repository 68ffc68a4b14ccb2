// Ticks to Unix nanoseconds: the C++ side of model/clock.py, which states the rules.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "ticks.hpp"

namespace recfn {

struct Anchor {
  uint64_t ticks;
  int64_t unix_ns;
};

// Both clocks at one moment: of a few tries, the one during which the least time passed.
inline Anchor take_anchor(bool use_cycle_counter) {
  Anchor best{};
  uint64_t best_gap = UINT64_MAX;
  for (int attempt = 0; attempt < 5; ++attempt) {
    const uint64_t before = read_ticks(use_cycle_counter);
    const auto wall = static_cast<int64_t>(unix_ns());
    const uint64_t gap = read_ticks(use_cycle_counter) - before;
    if (gap < best_gap) best_gap = gap, best = {before + gap / 2, wall};
  }
  return best;
}

class ClockMapping {
 public:
  void start(Anchor anchor, double ns_per_tick) {
    anchor_ = rated_ = anchor, before_ns_ = anchor.unix_ns;
    nominal_ = rate_ = before_rate_ = ns_per_tick;
  }

  void anchor(Anchor now) {
    if (now.ticks <= anchor_.ticks) return;
    const int64_t predicted = to_unix_ns(now.ticks);
    const int64_t error = now.unix_ns - predicted;
    const bool step = error > kForwardStepNs;
    before_ns_ = predicted, before_rate_ = rate_;
    measure_rate(now);
    const double elapsed_ns = static_cast<double>(now.ticks - anchor_.ticks) * nominal_;
    const double slew = step ? 0 : static_cast<double>(error) / std::max(elapsed_ns, kHorizonNs);
    rate_ = nominal_ * (1 + std::clamp(slew, -kMaxSlew, kMaxSlew));
    anchor_ = {now.ticks, step ? now.unix_ns : predicted};
  }

  // Ticks before the anchor stay on the line that led to it, so that a late record never overtakes an earlier one.
  int64_t to_unix_ns(uint64_t ticks) const {
    const auto distance = static_cast<int64_t>(ticks - anchor_.ticks);
    if (distance < 0) return before_ns_ + std::llround(static_cast<double>(distance) * before_rate_);
    return anchor_.unix_ns + std::llround(static_cast<double>(distance) * rate_);
  }

 private:
  // The nominal rate over a second or more, unless the wall clock was set meanwhile.
  void measure_rate(Anchor now) {
    const double elapsed = static_cast<double>(now.ticks - rated_.ticks);
    if (elapsed * nominal_ < kHorizonNs) return;
    const double measured = static_cast<double>(now.unix_ns - rated_.unix_ns) / elapsed;
    if (std::abs(measured / nominal_ - 1) < kPlausible) nominal_ = measured;
    rated_ = now;
  }

  static constexpr double kMaxSlew = 0.1;
  static constexpr double kHorizonNs = 1e9;
  static constexpr double kPlausible = 1e-3;
  static constexpr int64_t kForwardStepNs = 1'000'000'000;
  Anchor anchor_{}, rated_{};
  int64_t before_ns_ = 0;
  double nominal_ = 1, rate_ = 1, before_rate_ = 1;
};

}  // namespace recfn
