// The short way of a call whose begin and end need nothing else: what most calls are, and what the tracer of calls tries first.
//
// Each function either does all of it or nothing, and says so: then begin_call and end_range do it. They do it, too, where the
// clock isn't the cycle counter: another one is a function, for whose sake each call would save and restore registers.
#pragma once
#include <cstdint>

#include "core/begin_end.hpp"

namespace recfn {

// Whether the thread's last look still holds, and what began since is on its stack: then the innermost of that is the parent.
[[gnu::always_inline]] inline bool lies_in_innermost(const Globals& globals, const ThreadBuffer& buffer, uint64_t context_version) {
  const ClosedElsewhere& closed = buffer.closed_elsewhere;
  return buffer.generation == globals.generation.load(std::memory_order_relaxed) && !buffer.context_stale &&
         context_version == buffer.context_version && buffer.depth > buffer.look_depth && buffer.depth < kMaxDepth &&
         encloses_by_place(buffer.stack[buffer.depth - 1]) &&
         closed.head.load(std::memory_order_relaxed) == closed.tail.load(std::memory_order_relaxed);
}

// Where the name stands in the thread's dictionary, at its first place; kManyNamesSlot where it doesn't.
[[gnu::always_inline]] inline uint32_t first_slot_of(const ThreadBuffer& buffer, uint64_t name_hash, uint64_t name_size) {
  const uint32_t slot = static_cast<uint32_t>(name_hash) & (kNameSlots - 1);
  const NameSlot& held = buffer.names[slot];
  return held.hash == name_hash && held.size_plus_one == name_size + 1 ? slot : kManyNamesSlot;
}

// Whether the call has begun, and as which event.
[[gnu::always_inline]] inline bool begin_known_call(const Globals& globals, ThreadBuffer& buffer, uint64_t name_hash,
                                                    uint64_t name_size, uint64_t context_version, uint64_t& event_id) {
  const bool known = lies_in_innermost(globals, buffer, context_version) && buffer.unsent == 0 && globals.use_cycle_counter;
  if (__builtin_expect(!known, 0)) return false;
  const uint32_t slot = first_slot_of(buffer, name_hash, name_size);
  const uint64_t room = kBeginWords + uint64_t{kEndWords} * (buffer.open_recorded + 1u);
  if (__builtin_expect(slot == kManyNamesSlot || buffer.head + room > buffer.limit, 0)) return false;
  const uint64_t ordinal = buffer.ordinal.load(std::memory_order_relaxed) + 1;
  event_id = make_event_id(buffer.number, ordinal);
  buffer.ordinal.store(ordinal, std::memory_order_relaxed);
  ++buffer.open_recorded;
  buffer.stack[buffer.depth++] = {event_id, ordinal | OpenEntry::kPythonBit, buffer.task};
  const uint64_t head = header(kBegin, 0, kPythonCallSource << kSourceShift, slot, 0);
  buffer.put_and_publish({head, cycle_counter()});
  return true;
}

// Whether the call was the innermost range, and has ended.
[[gnu::always_inline]] inline bool end_known_call(const Globals& globals, ThreadBuffer& buffer, uint64_t event_id) {
  const uint32_t depth = buffer.depth;
  const bool known = depth > buffer.floor && buffer.stack[depth - 1].key == event_id && globals.use_cycle_counter;
  if (__builtin_expect(!known, 0)) return false;
  buffer.depth = depth - 1;
  --buffer.open_recorded;
  buffer.put_and_publish({end_header(0, event_id & kOrdinalMask), cycle_counter()});
  return true;
}

}  // namespace recfn
