// The records that stand before a begin in the ring: its prelude, and what changed since the last begin.
#pragma once
#include <cstdint>
#include <cstring>

#include "core/thread_buffer.hpp"

namespace recfn {

// A thread's dictionary of names and stacks: a record names a slot, and the drain knows what the slot holds.

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

// Names are told apart by this and their size. The seed is random per process: no input can aim for a collision.
inline uint64_t hash_name(Text name, uint64_t seed) {
  constexpr uint64_t kOdd = 0x9E3779B97F4A7C15u;
  uint64_t state = seed ^ name.size;
  const char* at = name.data;
  uint32_t left = name.size;
  for (; left > 8; at += 8, left -= 8) state = mix(state ^ load_up_to_8(at, 8), kOdd);
  return mix(state ^ load_up_to_8(at, left), kOdd ^ seed);
}

// Where a name stands in the thread's dictionary, which the drain rebuilds from the Name records. `hit` says whether it
// already stands there; if not, writing it replaces what the slot held.
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

[[gnu::noinline]] inline void put_name(ThreadBuffer& buffer, Text name, uint64_t hash, uint32_t slot) {
  buffer.names[slot] = {hash, name.size + 1u};
  buffer.put(header(kName, 0, 0, slot, name.size));
  buffer.put_text(name);
}

[[gnu::noinline]] inline void count_shortened(ThreadBuffer& buffer) {
  buffer.shortened.store(buffer.shortened.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

// The text's slot in the dictionary, into which it is written if need be; kManyNamesSlot when that would take too much room.
inline uint32_t put_named(ThreadBuffer& buffer, Text text) {
  bool named;
  const uint64_t hash = hash_name(text, buffer.name_seed);
  const uint32_t slot = find_name_slot(buffer, text, hash, named);
  if (named) return slot;
  if (is_crowded(buffer)) return count_shortened(buffer), kManyNamesSlot;
  put_name(buffer, text, hash, slot);
  return slot;
}

inline void put_context(ThreadBuffer& buffer) {
  buffer.put(kContext);
  buffer.put(buffer.context.trace_high);
  buffer.put(buffer.context.trace_low);
  buffer.put(buffer.context.span_id);
  buffer.put(buffer.context.flags);
  buffer.put(buffer.context.enclosing);
  buffer.put(buffer.context.root);
}

inline uint32_t text_words(Text text) { return text.size != 0 ? 1 + words_of(text.size) : 0; }

// Of a text that put_stack puts.
inline uint32_t slot_words(Text text) { return text.size != 0 ? text_words(text) + 1 : 0; }

[[gnu::noinline]] inline uint32_t rare_words(const RarePrelude& rare) {
  return text_words(rare.module) + text_words(rare.shapes_text) + text_words(rare.dtypes_text) +
         text_words(rare.concrete_text) + text_words(rare.words_text) + slot_words(rare.stack) + slot_words(rare.code) +
         slot_words(rare.call_site) + (rare.shape_words != 0 ? 1 + rare.shape_words : 0) +
         (rare.flops != 0 ? 2 : 0) + (rare.step_number != -1 ? 2 : 0);
}

// How many words may stand before a begin, at most.
[[gnu::always_inline]] inline uint32_t prelude_words(const ThreadBuffer& buffer, const Prelude& prelude) {
  uint32_t words = (buffer.unsent & kContextUnsent) != 0 ? kContextWords : 0;
  if ((buffer.unsent & kGenerationUnsent) != 0) words += 1;
  if ((buffer.unsent & kProfilerUnsent) != 0) words += 1;
  if ((buffer.unsent & kParentUnsent) != 0) words += 1;
  if (prelude.debug_handle != -1) words += 2;
  if (__builtin_expect(prelude.rare != nullptr, 0)) words += rare_words(*prelude.rare);
  return words;
}

inline void put_text_record(ThreadBuffer& buffer, TextKind kind, Text text) {
  if (text.size == 0) return;
  buffer.put(header(kText, kind, 0, 0, text.size));
  buffer.put_text(text);
}

// A stack, or what a range is a call of, comes again and again: its text is in the dictionary.
inline void put_stack(ThreadBuffer& buffer, StackKind kind, Text stack) {
  const uint32_t slot = put_named(buffer, stack);
  if (slot != kManyNamesSlot) buffer.put(header(kStack, kind, 0, slot, 0));
}

inline void put_rare(ThreadBuffer& buffer, const RarePrelude& rare) {
  put_text_record(buffer, kModuleText, rare.module);
  put_text_record(buffer, kShapesText, rare.shapes_text);
  put_text_record(buffer, kDtypesText, rare.dtypes_text);
  put_text_record(buffer, kConcreteText, rare.concrete_text);
  put_text_record(buffer, kWordsText, rare.words_text);
  if (rare.stack.size != 0) put_stack(buffer, kCallStack, rare.stack);
  if (rare.code.size != 0) put_stack(buffer, kCalledCode, rare.code);
  if (rare.call_site.size != 0) put_stack(buffer, kCallSite, rare.call_site);
  if (rare.shape_words != 0) {
    buffer.put(header(kShapes, 0, 0, 0, rare.shape_words));
    for (uint32_t at = 0; at < rare.shape_words; ++at) buffer.put(rare.shapes[at]);
  }
  if (rare.flops != 0) {
    buffer.put(header(kNumber, kFlopsNumber, 0, 0, 0));
    buffer.put(static_cast<uint64_t>(rare.flops));
  }
  if (rare.step_number != -1) {
    buffer.put(header(kNumber, kStepNumber, 0, 0, 0));
    buffer.put(static_cast<uint64_t>(rare.step_number));
  }
}

// `prelude` is passed by value, so that the hot path's own copy stays in registers.
[[gnu::noinline]] inline void put_prelude(ThreadBuffer& buffer, Prelude prelude) {
  if ((buffer.unsent & kGenerationUnsent) != 0) buffer.put(header(kGeneration, 0, 0, 0, buffer.generation));
  if ((buffer.unsent & kContextUnsent) != 0) put_context(buffer);
  if ((buffer.unsent & kProfilerUnsent) != 0) buffer.put(header(kProfiler, 0, 0, 0, buffer.profiler_sent));
  if ((buffer.unsent & kParentUnsent) != 0) buffer.put(parent_header(buffer.parent_ordinal));
  buffer.unsent = 0;
  if (prelude.rare != nullptr) put_rare(buffer, *prelude.rare);
  if (prelude.debug_handle != -1) {
    buffer.put(kDebugHandle);
    buffer.put(static_cast<uint64_t>(prelude.debug_handle));
  }
}

}  // namespace recfn
