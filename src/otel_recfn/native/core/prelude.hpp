// The records that stand before a begin in the ring: its prelude, and what changed since the last begin.
#pragma once
#include <cstdint>

#include "core/name_dictionary.hpp"

namespace recfn {

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
