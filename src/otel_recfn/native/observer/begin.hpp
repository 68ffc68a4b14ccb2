// A range's begin, with all that was asked for.
#pragma once
#include <ATen/record_function.h>

#include <cstring>
#include <string>

#include "core/utf8.hpp"
#include "observer/flops.hpp"
#include "observer/input_shapes.hpp"
#include "observer/input_words.hpp"
#include "observer/observer_thread.hpp"
#include "observer/operator_stack.hpp"
#include "pytorch/range_details.hpp"

namespace recfn {
namespace {

C10_ALWAYS_INLINE Begin begin_of(const at::RecordFunction& fn) {
  Begin range;
  const char* name = fn.name();
  range.name = {name, cut_at_character(name, std::strlen(name), kMaxNameBytes)};
  range.handle = fn.handle();
  range.sequence_nr = fn.seqNr();
  range.forward_thread_id = read_or(details::forward_thread_id, fn, uint64_t{0});
  range.prelude.debug_handle = read_or(details::debug_handle, fn, int64_t{-1});
  range.scope = static_cast<uint32_t>(fn.scope());
  return range;
}

// 0 where the inputs throw, as those of a tensor subclass may.
template <typename Range>
int64_t flops_or_0(const Range& fn) {
  try {
    if constexpr (kHasFlops) return count_flops(fn.name(), fn.inputs());
  } catch (...) {
  }
  return 0;
}

// None where the inputs throw, or there is no memory.
template <typename Range>
std::string words_or_none(const Range& fn) {
  try {
    if constexpr (kHasWords) {
      if (C10_UNLIKELY(is_counted_by_words(fn.name()))) return words_among(fn.inputs());
    }
  } catch (...) {
  }
  return {};
}

template <typename Range>
void add_shapes(const Range& fn, ShapeWords& words) {
  if constexpr (kHasShapes) words.add_inputs(fn.inputs());
}

// `asked`: bits of Extra. The inputs are there if the range's callbacks need them.
template <bool kInputs>
void begin_with_extras(const at::RecordFunction& fn, ThreadBuffer& buffer, bool selected, uint32_t asked) {
  const uint32_t wanted = selected && catch_up(*shared, buffer, kMayLook) ? asked : 0;
  ShapeWords words;
  char stack[kMaxStackBytes];
  RarePrelude rare;
  std::string told;
  if (kInputs && (wanted & kShapesExtra) != 0) add_shapes(fn, words);
  if (kInputs && (wanted & kFlopsExtra) != 0) {
    rare.flops = flops_or_0(fn);
    told = words_or_none(fn);
    if (told.size() <= kMaxShapesBytes) rare.words_text = {told.data(), static_cast<uint32_t>(told.size())};
  }
  const bool backward = fn.scope() == at::RecordScope::BACKWARD_FUNCTION;  // its stack is autograd's and not the program's
  if ((wanted & kStackExtra) != 0 && !backward) rare.stack = {stack, operator_stack(*shared, stack, sizeof stack)};
  rare.shapes = words.data();
  rare.shape_words = words.size();
  Begin range = begin_of(fn);
  range.prelude.rare = &rare;
  begin_range<true>(*shared, buffer, range, selected);
}

}  // namespace
}  // namespace recfn
