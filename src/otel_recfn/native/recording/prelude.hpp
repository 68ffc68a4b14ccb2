// The records that stand before a begin in the ring: names and texts by their slots, and what
// changed since the last begin.
//
//     | Epoch | Context | Profiler | Parent | Text ... | Shapes | Number ... | Name | Begin |
//     └───── those that are `unsent` ──────┘└───── what few ranges have ────┘└──┬──┘
//                                              unless the dictionary has it ────┘
//
// They are published with the begin, and room for all of them is found before the first is written:
// the drain sees all or none.
#pragma once
#include <cstdint>
#include <cstring>

#include "core/thread_buffer.hpp"
#include "model/numbers.hpp"

namespace recfn {

inline uint64_t mix(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

inline uint64_t load_up_to_8(const char* data, uint32_t size) {
  uint64_t word = 0;
  if (size >= 8) {
    std::memcpy(&word, data, 8);
  } else if (size >= 4) {
    uint32_t low, high;
    std::memcpy(&low, data, 4);
    std::memcpy(&high, data + size - 4, 4);
    word = low | static_cast<uint64_t>(high) << 32;
  } else if (size > 0) {
    word = static_cast<uint8_t>(data[0]) | static_cast<uint8_t>(data[size / 2]) << 8 |
           static_cast<uint64_t>(static_cast<uint8_t>(data[size - 1])) << 16;
  }
  return word;
}

// Names are told apart by this hash of their content and their size, never by pointer: the memory
// of an operator's schema may be freed and have another one's name later. That costs 5 ns, and
// nothing has to be told when a name goes.
inline uint64_t hash_name(Text name) {
  uint64_t state = kOddNumber ^ name.size;
  const char* at = name.data;
  uint32_t remaining = name.size;
  while (remaining > 8) {
    state = mix(state ^ load_up_to_8(at, 8), kOddNumber);
    at += 8;
    remaining -= 8;
  }
  return mix(state ^ load_up_to_8(at, remaining), kOddNumber);
}

// Where a name stands in the thread's dictionary, which the drain rebuilds from the Name records.
// `hit` says whether it already stands there; if not, writing it replaces what the slot held.
inline uint32_t find_name_slot(ThreadBuffer& buffer, Text name, uint64_t hash, bool& hit) {
  constexpr uint32_t kProbes = 4;  // whose slots are 64 bytes
  const auto first_slot = static_cast<uint32_t>(hash);
  // Of four others that are all in use, another part of the hash says which one goes.
  uint32_t victim =
      (first_slot + (static_cast<uint32_t>(hash >> 40) & (kProbes - 1))) & (kNameSlots - 1);
  for (uint32_t probe = 0; probe < kProbes; ++probe) {
    const uint32_t slot = (first_slot + probe) & (kNameSlots - 1);
    const NameSlot& name_slot = buffer.names[slot];
    if (name_slot.hash == hash && name_slot.size_plus_one == name.size + 1u) {
      hit = true;
      return slot;
    }
    if (name_slot.size_plus_one == 0) {
      victim = slot;
      break;
    }
  }
  hit = false;
  return victim;
}

[[gnu::noinline]] inline void put_name(ThreadBuffer& buffer, Text name, uint64_t hash,
                                       uint32_t slot) {
  buffer.names[slot] = {hash, name.size + 1u};
  buffer.put(header(kName, 0, 0, slot, name.size));
  buffer.put_bytes(name);
}

// The name's slot in the dictionary, into which it is written if need be.
inline uint32_t put_named(ThreadBuffer& buffer, Text name) {
  bool named;
  const uint64_t hash = hash_name(name);
  const uint32_t slot = find_name_slot(buffer, name, hash, named);
  if (!named) put_name(buffer, name, hash, slot);
  return slot;
}

// How many words put_text writes, at most.
inline uint32_t text_words(Text text) { return text.size != 0 ? 2 + words_of(text.size) : 0; }

// Texts come again and again: they stand in the dictionary, as names do.
inline void put_text(ThreadBuffer& buffer, TextKind kind, Text text) {
  if (text.size != 0) buffer.put(header(kText, kind, 0, put_named(buffer, text), 0));
}

inline void put_number(ThreadBuffer& buffer, NumberKind kind, int64_t number) {
  buffer.put(header(kNumber, kind, 0, 0, 0));
  buffer.put(static_cast<uint64_t>(number));
}

[[gnu::noinline]] inline uint32_t optional_words(const OptionalPrelude& optional) {
#define RECFN_WORDS(type, name, empty) +(optional.name != empty ? 2 : 0)
  uint32_t words = 0 RECFN_PRELUDE_NUMBERS(RECFN_WORDS);
#undef RECFN_WORDS
  if (optional.shape_words != 0) words += 1 + optional.shape_words;
  for (const Text text : optional.texts) words += text_words(text);
  return words;
}

inline void put_optional(ThreadBuffer& buffer, const OptionalPrelude& optional) {
  for (uint64_t kind = 0; kind < kBeginTexts; ++kind) {
    put_text(buffer, static_cast<TextKind>(kind), optional.texts[kind]);
  }
  if (optional.shape_words != 0) buffer.put(header(kShapes, 0, 0, 0, optional.shape_words));
  for (uint32_t i = 0; i < optional.shape_words; ++i) buffer.put(optional.shapes[i]);
#define RECFN_PUT_NUMBER(type, name, empty) \
  if (optional.name != empty)               \
    put_number(buffer, k_##name##_number, static_cast<int64_t>(optional.name));
  RECFN_PRELUDE_NUMBERS(RECFN_PUT_NUMBER)
#undef RECFN_PUT_NUMBER
}

// How many words may stand before a begin, at most.
[[gnu::always_inline]] inline uint32_t prelude_words(const ThreadBuffer& buffer,
                                                     const Prelude& prelude) {
  uint32_t words = (buffer.recording.unsent & kContextUnsent) != 0 ? kContextWords : 0;
  if ((buffer.recording.unsent & kEpochUnsent) != 0) words += 1;
  if ((buffer.recording.unsent & kProfilerUnsent) != 0) words += 1;
  if ((buffer.recording.unsent & kParentUnsent) != 0) words += 1;
  if (prelude.debug_handle != -1) words += 2;
  if (__builtin_expect(prelude.optional != nullptr, 0)) words += optional_words(*prelude.optional);
  return words;
}

// `prelude` is passed by value, so that the hot path's own copy stays in registers.
[[gnu::noinline]] inline void put_prelude(ThreadBuffer& buffer, Prelude prelude) {
  if ((buffer.recording.unsent & kEpochUnsent) != 0) {
    buffer.put(header(kEpoch, 0, 0, 0, buffer.recording.epoch));
  }
  if ((buffer.recording.unsent & kContextUnsent) != 0) {
    const Context& context = buffer.preceding.context;
    buffer.put(kContext);
    for (const uint64_t word :
         {context.trace_high, context.trace_low, context.span_id, context.flags}) {
      buffer.put(word);
    }
    buffer.put(context.enclosing);
    buffer.put(context.root);
  }
  if ((buffer.recording.unsent & kProfilerUnsent) != 0) {
    buffer.put(header(kProfiler, 0, 0, 0, buffer.preceding.profiler));
  }
  if ((buffer.recording.unsent & kParentUnsent) != 0) {
    buffer.put(parent_header(buffer.preceding.parent_ordinal));
  }
  buffer.recording.unsent = 0;
  if (prelude.optional != nullptr) put_optional(buffer, *prelude.optional);
  if (prelude.debug_handle != -1) put_number(buffer, kDebugHandle, prelude.debug_handle);
}

}  // namespace recfn
