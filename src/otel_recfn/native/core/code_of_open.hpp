// Says of a range of PyTorch's that is open what it is a call of: Python learns that only when the range has begun.
#pragma once
#include <cstdint>

#include "core/prelude.hpp"

namespace recfn {

// Nothing where the innermost range of the thread is not PyTorch's, is not recorded, or there is no room.
inline void put_code_of_open(const Globals& globals, ThreadBuffer& buffer, Text code) {
  const bool current = buffer.generation == globals.generation.load(std::memory_order_relaxed);
  if (!current || buffer.depth <= buffer.floor || buffer.depth > kMaxDepth) return;
  const OpenEntry& innermost = buffer.stack[buffer.depth - 1];
  if (innermost.ordinal() == 0 || code.size == 0) return;
  if (!buffer.has_room(slot_words(code) + uint64_t{kEndWords} * buffer.open_recorded)) return;
  const uint32_t slot = put_named(buffer, code);
  if (slot != kManyNamesSlot) buffer.put(header(kStack, kCodeOfOpen, 0, slot, static_cast<uint32_t>(innermost.ordinal())));
}

}  // namespace recfn
