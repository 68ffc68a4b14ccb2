// Sums of 64 bits without undefined behaviour where times are nonsense, or many.
#pragma once
#include <cstdint>

namespace recfn {

inline int64_t wrapped_sum(int64_t one, int64_t other) {
  return static_cast<int64_t>(static_cast<uint64_t>(one) + static_cast<uint64_t>(other));
}
inline int64_t wrapped_difference(int64_t one, int64_t other) {
  return static_cast<int64_t>(static_cast<uint64_t>(one) - static_cast<uint64_t>(other));
}

}  // namespace recfn
