// Where a text of UTF-8 may be cut.
#pragma once
#include <cstdint>

namespace recfn {

// How many bytes of the text fit into `most`, whole characters.
inline uint32_t cut_at_character(const char* data, uint64_t size, uint32_t most) {
  if (size <= most) return static_cast<uint32_t>(size);
  while (most > 0 && (data[most] & 0xC0) == 0x80) --most;
  return most;
}

}  // namespace recfn
