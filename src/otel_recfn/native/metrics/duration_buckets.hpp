// Counts of durations per bucket, for each series: between given bounds, or between powers of a base that grows with the range.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace recfn {

// How many bits a duration has: durations of as many bits are within a factor of two.
inline size_t bits_of(int64_t ns) { return ns == 0 ? 0 : 64 - static_cast<size_t>(__builtin_clzll(static_cast<uint64_t>(ns))); }

// Bucket n of a series counts durations of at least n of the bounds.
class BoundBuckets {
 public:
  BoundBuckets(const int64_t* least_ns, size_t bounds, int64_t* counts)
      : least_ns_(least_ns, least_ns + bounds), buckets_(bounds + 1), counts_(counts) {
    for (size_t bits = 0; bits < kBits; ++bits) {
      const int64_t lowest = bits == 0 ? 0 : int64_t{1} << (bits - 1);
      const int64_t highest = bits == 0 ? 0 : lowest - 1 + lowest;
      below_[bits] = bucket_of(lowest);
      most_ = std::max(most_, bucket_of(highest) - below_[bits]);
    }
    least_ns_.resize(bounds + most_, INT64_MAX);
  }

  void add(size_t series, int64_t ns) {
    const size_t below = below_[bits_of(ns)];
    size_t bucket = below;  // the bounds between durations of as many bits are few: all are compared, without a branch
    for (size_t bound = below; bound < below + most_; ++bound) bucket += ns >= least_ns_[bound];
    ++counts_[series * buckets_ + std::min(bucket, buckets_ - 1)];
  }

 private:
  static constexpr size_t kBits = 64;  // a duration has 63 at most

  size_t bucket_of(int64_t ns) const {
    return static_cast<size_t>(std::upper_bound(least_ns_.begin(), least_ns_.end(), ns) - least_ns_.begin());
  }

  std::vector<int64_t> least_ns_;
  size_t below_[kBits];
  size_t most_ = 0;
  size_t buckets_;
  int64_t* counts_;
};

// Bucket n at a scale counts values in (base^n, base^(n+1)], where base is 2^(2^-scale), as OpenTelemetry's exponential
// histograms have them. A series begins at the largest scale, and goes to smaller ones when its range needs more buckets than
// there are. Bucket n stands at n modulo the places of a series, a power of two, so that nothing moves when the range grows.
class PowerBuckets {
 public:
  enum Of { kScale, kLow, kHigh, kFields };  // of a series: its scale, and the buckets at its ends; high < low: none

  struct Rule {
    int64_t max_scale;
    double factor;            // what log(value) is multiplied by to get the index at that scale, where it is above 0
    const int32_t* short_ns;  // the index at that scale of each duration below `shorter`: a logarithm costs more than all else
    int64_t shorter;
    size_t size, places;
  };

  PowerBuckets(const Rule& rule, int64_t* ranges, int64_t* counts)
      : rule_(rule), size_(static_cast<int64_t>(rule.size)), ranges_(ranges), counts_(counts), old_(rule.places) {}

  void add(size_t series, int64_t ns) {
    if (ns == 0) return;
    int64_t* range = ranges_ + series * kFields;
    const int64_t finest = ns < rule_.shorter ? rule_.short_ns[ns] : index_of(static_cast<double>(ns) / 1e9);
    int64_t index = finest >> (rule_.max_scale - range[kScale]);
    if (range[kHigh] < range[kLow]) {
      range[kLow] = range[kHigh] = index;
    } else if (index < range[kLow] || index > range[kHigh]) {
      index = widen(series, range, index);
    }
    ++counts_[place(series, index)];
  }

 private:
  // As the SDK's mappings: exact powers of two belong to the bucket below.
  int64_t index_of(double value) const {
    uint64_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const int64_t exponent = static_cast<int64_t>(bits >> 52) - 1023;
    const bool is_power = (bits & ((uint64_t{1} << 52) - 1)) == 0;
    if (rule_.max_scale <= 0) return (exponent - is_power) >> -rule_.max_scale;
    if (is_power) return exponent * (int64_t{1} << rule_.max_scale) - 1;
    return static_cast<int64_t>(std::floor(std::log(value) * rule_.factor));
  }

  // Makes room for a bucket outside the range, at a smaller scale where it has to; the bucket's index at that scale.
  int64_t widen(size_t series, int64_t* range, int64_t index) {
    int64_t low = std::min(range[kLow], index), high = std::max(range[kHigh], index), change = 0;
    while ((high >> change) - (low >> change) >= size_) ++change;
    if (change != 0) rescale(series, range, change);
    range[kScale] -= change;
    range[kLow] = low >> change;
    range[kHigh] = high >> change;
    return index >> change;
  }

  void rescale(size_t series, const int64_t* range, int64_t change) {
    int64_t* counts = counts_ + series * rule_.places;
    std::copy_n(counts, rule_.places, old_.begin());
    std::fill_n(counts, rule_.places, 0);
    for (int64_t index = range[kLow]; index <= range[kHigh]; ++index) {
      counts_[place(series, index >> change)] += old_[position(index)];
    }
  }

  size_t position(int64_t index) const { return static_cast<size_t>(index) & (rule_.places - 1); }
  size_t place(size_t series, int64_t index) const { return series * rule_.places + position(index); }

  Rule rule_;
  int64_t size_;
  int64_t* ranges_;
  int64_t* counts_;
  std::vector<int64_t> old_;  // of the series that is rescaled
};

}  // namespace recfn
