// The records that stand before a begin in the ring: names and texts by their slots, and what
// changed since the last begin.
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

// Names are told apart by this and their size.
inline uint64_t hash_name(Text name) {
  uint64_t state = kOddNumber ^ name.size;
  const char* at = name.data;
  uint32_t left = name.size;
  for (; left > 8; at += 8, left -= 8) state = mix(state ^ load_up_to_8(at, 8), kOddNumber);
  return mix(state ^ load_up_to_8(at, left), kOddNumber);
}

// Where a name stands in the thread's dictionary, which the drain rebuilds from the Name records.
// `hit` says whether it already stands there; if not, writing it replaces what the slot held.
inline uint32_t find_name_slot(ThreadBuffer& buffer, Text name, uint64_t hash, bool& hit) {
  constexpr uint32_t kProbes = 4;
  const auto home = static_cast<uint32_t>(hash);
  uint32_t victim = (home + (static_cast<uint32_t>(hash >> 40) & (kProbes - 1))) & (kNameSlots - 1);
  for (uint32_t probe = 0; probe < kProbes; ++probe) {
    const uint32_t slot = (home + probe) & (kNameSlots - 1);
    const NameSlot& held = buffer.names[slot];
    if (held.hash == hash && held.size_plus_one == name.size + 1u) {
      hit = true;
      return slot;
    }
    if (held.size_plus_one == 0) {
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

[[gnu::noinline]] inline uint32_t rare_words(const RarePrelude& rare) {
#define RECFN_WORDS(type, name, empty) +(rare.name != empty ? 2 : 0)
  uint32_t words = 0 RECFN_RARE_NUMBERS(RECFN_WORDS);
#undef RECFN_WORDS
  if (rare.shape_words != 0) words += 1 + rare.shape_words;
  for (const Text text : rare.texts) words += text_words(text);
  return words;
}

inline void put_rare(ThreadBuffer& buffer, const RarePrelude& rare) {
  for (uint64_t kind = 0; kind < kBeginTexts; ++kind)
    put_text(buffer, static_cast<TextKind>(kind), rare.texts[kind]);
  if (rare.shape_words != 0) buffer.put(header(kShapes, 0, 0, 0, rare.shape_words));
  for (uint32_t at = 0; at < rare.shape_words; ++at) buffer.put(rare.shapes[at]);
#define RECFN_PUT(type, name, empty) \
  if (rare.name != empty) put_number(buffer, k_##name##_number, static_cast<int64_t>(rare.name));
  RECFN_RARE_NUMBERS(RECFN_PUT)
#undef RECFN_PUT
}

// How many words may stand before a begin, at most.
[[gnu::always_inline]] inline uint32_t prelude_words(const ThreadBuffer& buffer,
                                                     const Prelude& prelude) {
  uint32_t words = (buffer.unsent & kContextUnsent) != 0 ? kContextWords : 0;
  if ((buffer.unsent & kGenerationUnsent) != 0) words += 1;
  if ((buffer.unsent & kProfilerUnsent) != 0) words += 1;
  if ((buffer.unsent & kParentUnsent) != 0) words += 1;
  if (prelude.debug_handle != -1) words += 2;
  if (__builtin_expect(prelude.rare != nullptr, 0)) words += rare_words(*prelude.rare);
  return words;
}

// `prelude` is passed by value, so that the hot path's own copy stays in registers.
[[gnu::noinline]] inline void put_prelude(ThreadBuffer& buffer, Prelude prelude) {
  if ((buffer.unsent & kGenerationUnsent) != 0)
    buffer.put(header(kGeneration, 0, 0, 0, buffer.generation));
  if ((buffer.unsent & kContextUnsent) != 0) {
    const Context& context = buffer.context;
    buffer.put(kContext);
    for (const uint64_t word :
         {context.trace_high, context.trace_low, context.span_id, context.flags})
      buffer.put(word);
    buffer.put(context.enclosing);
    buffer.put(context.root);
  }
  if ((buffer.unsent & kProfilerUnsent) != 0)
    buffer.put(header(kProfiler, 0, 0, 0, buffer.profiler_sent));
  if ((buffer.unsent & kParentUnsent) != 0) buffer.put(parent_header(buffer.parent_ordinal));
  buffer.unsent = 0;
  if (prelude.rare != nullptr) put_rare(buffer, *prelude.rare);
  if (prelude.debug_handle != -1) put_number(buffer, kDebugHandle, prelude.debug_handle);
}

}  // namespace recfn
