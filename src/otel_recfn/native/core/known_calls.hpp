// The short way of a call whose begin and end need nothing else: what most calls are, and what the
// tracer of calls tries first.
//
// Each function either does all of it or nothing, and says so: then begin_call and end_range do it.
// They do it, too, where the clock isn't the cycle counter: another one is a function, for whose
// sake each call would save and restore registers.
#pragma once
#include <cstdint>

#include "core/begin_end.hpp"

namespace recfn {

// Whether the thread's last look still holds, and what began since is on its stack: then the
// innermost of that is the parent.
[[gnu::always_inline]] inline bool lies_in_innermost(const Globals& globals,
                                                     const ThreadBuffer& buffer,
                                                     uint64_t context_version) {
  const ClosedElsewhere& closed = buffer.closed_elsewhere;
  return buffer.generation == globals.short_way.load(std::memory_order_relaxed) &&
         buffer.context_stale.load(std::memory_order_relaxed) == 0 &&
         context_version == buffer.context_version && buffer.depth > buffer.look_depth &&
         buffer.depth < kMaxDepth && encloses_by_place(buffer.stack[buffer.depth - 1]) &&
         !buffer.stack[buffer.depth - 1].is_frame() && buffer.unsent == 0 &&
         buffer.leaf.load(std::memory_order_relaxed) == 0 &&
         closed.head.load(std::memory_order_relaxed) == closed.tail.load(std::memory_order_relaxed);
}

// A call's begin but for its time: what it is called, where that stands in threads' dictionaries at
// its first place.
struct KnownCall {
  uint64_t hash = 0, size_plus_one = 0;  // of the name, as NameSlot has them
  uint64_t head = 0;                     // of the record

  KnownCall() = default;
  explicit KnownCall(Text name) : hash(hash_name(name)), size_plus_one(name.size + 1u) {
    head = header(kBegin, 0, kPythonCallSource << kSourceShift, first_slot(), 0);
  }

  uint64_t first_slot() const { return hash & (kNameSlots - 1); }
  bool is_in(const NameSlot& held) const {
    return held.hash == hash && held.size_plus_one == size_plus_one;
  }
};

// The same pointer, kept in a register: compilers compute the address of a table's entry anew for
// each of its members.
[[gnu::always_inline]] inline const KnownCall* found_at(const KnownCall* call) {
#if defined(__GNUC__)
  asm("" : "+r"(call));
#endif
  return call;
}

// Whether the call may begin the short way: nothing else is to be noted, its name is in the
// dictionary, and there is room. It is counted then, as the thread's `ordinal`-th. A leaf's
// innermost range has to be one that Python may run in, so that what begins in the call asks for
// the context as it would in the call.
template <bool kLeaf>
[[gnu::always_inline]] inline bool may_begin_short(const Globals& globals, ThreadBuffer& buffer,
                                                   const KnownCall& call, uint64_t context_version,
                                                   uint64_t& ordinal) {
  const bool known = lies_in_innermost(globals, buffer, context_version) &&
                     (!kLeaf || buffer.stack[buffer.depth - 1].runs_python());
  if (__builtin_expect(!known || !call.is_in(buffer.names[call.first_slot()]), 0)) return false;
  const uint32_t open = buffer.open_recorded + 1;
  if (__builtin_expect(buffer.head + kBeginWords + uint64_t{kEndWords} * open > buffer.limit, 0))
    return false;
  ordinal = buffer.ordinal.load(std::memory_order_relaxed) + 1;
  buffer.open_recorded = open;
  buffer.ordinal.store(ordinal, std::memory_order_relaxed);
  return true;
}

[[gnu::always_inline]] inline void put_known_begin(ThreadBuffer& buffer, const KnownCall& call) {
  const uint64_t head = call.head;  // read before the record is written, which could alias it
  buffer.write_soon_from(buffer.head);
  buffer.put_and_publish({head, cycle_counter()});
}

// Whether the call has begun, and as which event.
[[gnu::always_inline]] inline bool begin_known_call(const Globals& globals, ThreadBuffer& buffer,
                                                    const KnownCall& call, uint64_t context_version,
                                                    uint64_t& event_id) {
  uint64_t ordinal;
  if (!may_begin_short<false>(globals, buffer, call, context_version, ordinal)) return false;
  event_id = make_event_id(buffer.number, ordinal);
  buffer.stack[buffer.depth++] = {event_id, ordinal | OpenEntry::kPythonBit, buffer.task};
  put_known_begin(buffer, call);
  return true;
}

// Whether the call was the innermost range, and has ended.
[[gnu::always_inline]] inline bool end_known_call(const Globals& globals, ThreadBuffer& buffer,
                                                  uint64_t event_id) {
  const uint32_t depth = buffer.depth;
  const bool known = depth > buffer.floor && buffer.stack[depth - 1].key == event_id &&
                     globals.use_cycle_counter && buffer.leaf.load(std::memory_order_relaxed) == 0;
  if (__builtin_expect(!known, 0)) return false;
  buffer.depth = depth - 1;
  --buffer.open_recorded;
  buffer.put_and_publish({end_header(0, event_id & kOrdinalMask), cycle_counter()});
  return true;
}

// The shortest way of a call in which no other call begins: it is on no stack, but noted in one
// place (`ThreadBuffer::leaf`).
//
//   begin_leaf ─► records begin, leaf = its ordinal ─► end_leaf      records end
//                               └─► stack_leaf          another call begins in it: from here on it
//                               is like others
//
// Operators and ranges that begin in it ask the stack what they lie in. That says the same without
// it: the drain, which reads the records, finds what is open innermost, and the thread's last look
// holds for the call around it as for itself.

// Whether the call has begun.
[[gnu::always_inline]] inline bool begin_leaf(const Globals& globals, ThreadBuffer& buffer,
                                              const KnownCall& call, uint64_t context_version) {
  uint64_t ordinal;
  if (!may_begin_short<true>(globals, buffer, call, context_version, ordinal)) return false;
  buffer.leaf.store(ordinal, std::memory_order_relaxed);
  put_known_begin(buffer, call);
  return true;
}

// Whether one was open, and has ended. What was left open in it lies on the stack, where it stays.
[[gnu::always_inline]] inline bool end_leaf(ThreadBuffer& buffer) {
  const uint64_t ordinal = buffer.leaf.load(std::memory_order_relaxed);
  if (__builtin_expect(ordinal == 0, 0)) return false;
  buffer.leaf.store(0, std::memory_order_relaxed);
  --buffer.open_recorded;
  buffer.put_and_publish({end_header(0, ordinal), cycle_counter()});
  return true;
}

// Puts it on the stack, below what began in it. Returns its event id; 0 where none was open, or
// where it had to be ended instead, because the stack is full.
[[gnu::noinline]] inline uint64_t stack_leaf(ThreadBuffer& buffer) {
  const uint64_t ordinal = buffer.leaf.load(std::memory_order_relaxed);
  if (ordinal == 0) return 0;
  if (buffer.depth == kMaxDepth) return end_leaf(buffer), 0;
  const auto began_since = [ordinal](const OpenEntry& entry) {
    return entry.ordinal() == 0 || entry.ordinal() > ordinal;
  };
  uint32_t place = buffer.depth++;
  for (; place > buffer.floor && began_since(buffer.stack[place - 1]); --place)
    buffer.stack[place] = buffer.stack[place - 1];
  buffer.look_depth +=
      place <= buffer.look_depth;  // then the thread has looked since: it began below that
  const uint64_t event_id = make_event_id(buffer.number, ordinal);
  const uint64_t task = place > 0 ? buffer.stack[place - 1].task
                                  : buffer.task;  // as what it lies in: no look was between
  buffer.stack[place] = {event_id, ordinal | OpenEntry::kPythonBit, task};
  buffer.leaf.store(0, std::memory_order_relaxed);
  return event_id;
}

}  // namespace recfn
