// A thread notes a moment: a mark, or a change of memory. Such a point lies in what is open, and opens nothing itself.
#pragma once
#include <cstdint>

#include "core/begin_end.hpp"

namespace recfn {

// Reads the current context, if it may have changed, before a point that can't wait for that itself.
inline void prepare_point(Globals& globals, ThreadBuffer& buffer) {
  place_begin(globals, buffer, kMayLook, kNoFrame);
  buffer.unsent &= ~uint32_t{kParentUnsent};
}

// Writes a mark (`name`) or a memory record (`name` is the device) of this moment. Returns its event id, or 0 without room.
inline uint64_t put_point(Globals& globals, ThreadBuffer& buffer, RecordKind kind, Text name, int64_t nbytes, MayLook look) {
  if (!catch_up(globals, buffer, look)) return count_unsampled(buffer), 0;
  if (!is_enabled(globals)) return 0;
  const uint32_t base = place_begin(globals, buffer, look, kNoFrame);
  if (base == kRestsNow) return count_unsampled(buffer), 0;
  const uint64_t ends = uint64_t{kEndWords} * buffer.open_recorded;
  if (!buffer.has_room(kMemoryWords + prelude_words(buffer, {}) + 1 + words_of(name.size) + ends)) {
    count_dropped_begin(buffer);
    return 0;
  }
  put_prelude(buffer, {});
  const uint64_t head = header(kind, 0, base, put_named(buffer, name), 0);
  const uint64_t ticks = read_ticks(globals.use_cycle_counter);
  const uint64_t ordinal = buffer.ordinal.load(std::memory_order_relaxed) + 1;
  buffer.ordinal.store(ordinal, std::memory_order_relaxed);
  if (kind == kMemory) {
    buffer.put_and_publish({head, ticks, static_cast<uint64_t>(nbytes)});
  } else {
    buffer.put_and_publish({head, ticks});
  }
  return make_event_id(buffer.number, ordinal);
}

}  // namespace recfn
