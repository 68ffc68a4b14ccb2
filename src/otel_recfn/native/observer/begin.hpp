// A range's begin, with all that was asked for.
#pragma once
#include <ATen/record_function.h>

#include <cstdint>
#include <cstring>

#include "core/record.hpp"
#include "observer/flops.hpp"
#include "observer/input_words.hpp"
#include "observer/operator_stack.hpp"
#include "observer/propagation.hpp"

namespace recfn {
namespace {

C10_ALWAYS_INLINE Begin make_begin(const at::RecordFunction& fn) {
  Begin range;
  const char* name = fn.name();
  range.name = {name, cut_at_character(name, std::strlen(name), kMaxNameBytes)};
  range.handle = fn.handle();
  range.sequence_nr = fn.seqNr();
  range.forward_thread_id = fn.forwardThreadId();
  range.prelude.debug_handle = fn.debugHandle();
  range.scope = static_cast<uint32_t>(fn.scope());
  return range;
}

// What was asked for of the inputs, as `words` and in `optional`.
template <typename Range>
void read_inputs(const Range& fn, uint32_t wanted, ShapeWords& words, OptionalPrelude& optional) {
  if ((wanted & kShapesExtra) != 0) words.add_inputs(fn.inputs());
  if ((wanted & kFlopsExtra) == 0) return;
  try {
    optional.flops = count_flops(fn.name(), fn.inputs());
  } catch (...) {  // inputs may throw, as those of a tensor subclass do
  }
}

// `asked`: bits of Extra. The inputs are there if the range's callbacks need them.
template <bool kInputs>
void begin_with_extras(const at::RecordFunction& fn, ThreadBuffer& buffer, bool selected,
                       uint32_t asked) {
  const uint32_t wanted = selected && catch_up(*shared, buffer, kMayRefresh) ? asked : 0;
  ShapeWords words;
  char stack[kMaxStackBytes];
  OptionalPrelude optional;
  if (kInputs) read_inputs(fn, wanted, words, optional);
  // Its stack is autograd's and not the program's.
  const bool backward = fn.scope() == at::RecordScope::BACKWARD_FUNCTION;
  if ((wanted & kStackExtra) != 0 && !backward) {
    optional.texts[kCallStack] = {stack, operator_stack(*shared, stack, sizeof stack)};
  }
  optional.shapes = words.data();
  optional.shape_words = words.size();
  Begin range = make_begin(fn);
  range.prelude.optional = &optional;
  begin_range<true>(*shared, buffer, range, selected);
}

}  // namespace
}  // namespace recfn
