// A range's begin, with all that was asked for.
#pragma once
#include <ATen/record_function.h>

#include <cstdio>
#include <cstring>
#include <string>

#if __has_include(<torch/csrc/jit/runtime/interpreter.h>)
#include <torch/csrc/jit/runtime/interpreter.h>
#endif

#include "core/record.hpp"
#include "observer/inputs.hpp"
#include "observer/launch.hpp"
#include "pytorch/features.hpp"

namespace recfn {

// The call stack that led to an operator: TorchScript's where its interpreter runs, else Python's.

using TorchscriptFrames = decltype(torch::jit::currentCallstack());

inline constexpr auto place_of = [](const auto& frame) -> decltype(frame.range.file_line_col()) {
  return frame.range.file_line_col();
};

// A frame's `filename` is the name of its function.
inline constexpr auto function_of = [](const auto& frame) -> decltype(frame.filename.c_str()) { return frame.filename.c_str(); };

constexpr bool kHasTorchscriptStack = compiles<TorchscriptFrames&>([](auto& frames) -> decltype(
    std::string(std::get<0>(*place_of(*frames.begin()))), size_t{std::get<1>(*place_of(*frames.begin()))},
    function_of(*frames.begin()), void()) {});

// As python_stack.hpp writes it: "file(line): function" a line, innermost first, whole lines only. Returns the bytes written.
template <typename Frames>
uint32_t write_frames(const Frames& frames, char* text, uint32_t size) {
  uint32_t used = 0;
  for (const auto& frame : frames) {  // innermost first
    const auto place = place_of(frame);
    if (!place) continue;
    const std::string& file = std::get<0>(*place);
    const size_t line = std::get<1>(*place);
    const int wanted = std::snprintf(text + used, size - used, "%s(%zu): %s\n", file.c_str(), line, function_of(frame));
    if (wanted <= 0 || static_cast<uint32_t>(wanted) >= size - used) break;
    used += static_cast<uint32_t>(wanted);
  }
  return used > 0 ? used - 1 : 0;  // without the last line's end
}

// How many frames the interpreter has in the calling thread; as if there were none where PyTorch doesn't tell.
template <bool kFound, typename Frames = TorchscriptFrames>
uint64_t count_torchscript_frames() {
  try {
    if constexpr (kFound) return Frames(torch::jit::currentCallstack()).size();
  } catch (...) {  // no memory
  }
  return 0;
}

// No text where that throws. Takes the GIL where Python knows the thread and TorchScript doesn't run in it.
template <bool kFound = kHasTorchscriptStack>
uint32_t operator_stack(const Globals& globals, char* text, uint32_t size) {
  try {
    uint32_t used = 0;
    if constexpr (kFound) used = write_frames(torch::jit::currentCallstack(), text, size);
    const auto read_python = globals.read_stack.load(std::memory_order_relaxed);
    return used != 0 || read_python == nullptr ? used : read_python(text, size);
  } catch (...) {
    return 0;
  }
}

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
    rare.texts[kWordsText] = {told.data(), static_cast<uint32_t>(told.size())};
  }
  const bool backward = fn.scope() == at::RecordScope::BACKWARD_FUNCTION;  // its stack is autograd's and not the program's
  if ((wanted & kStackExtra) != 0 && !backward) rare.texts[kCallStack] = {stack, operator_stack(*shared, stack, sizeof stack)};
  rare.shapes = words.data();
  rare.shape_words = words.size();
  Begin range = begin_of(fn);
  range.prelude.rare = &rare;
  begin_range<true>(*shared, buffer, range, selected);
}

}  // namespace
}  // namespace recfn
