// The call stack that led to an operator: TorchScript's where its interpreter runs, else Python's.
#pragma once
#include <cstdint>
#include <cstdio>
#include <string>
#include <tuple>

#if __has_include(<torch/csrc/jit/runtime/interpreter.h>)
#include <torch/csrc/jit/runtime/interpreter.h>
#endif

#include "core/globals.hpp"
#include "pytorch/features.hpp"

namespace recfn {

using TorchscriptFrames = decltype(torch::jit::currentCallstack());

inline constexpr auto location_of = [](const auto& frame) -> decltype(frame.range.file_line_col()) {
  return frame.range.file_line_col();
};

// A frame's `filename` is the name of its function.
inline constexpr auto function_of = [](const auto& frame) -> decltype(frame.filename.c_str()) {
  return frame.filename.c_str();
};

constexpr bool kHasTorchscriptStack = compiles<TorchscriptFrames&>(
    [](auto& frames) -> decltype(std::string(std::get<0>(*location_of(*frames.begin()))),
                                 size_t{std::get<1>(*location_of(*frames.begin()))},
                                 function_of(*frames.begin()), void()) {});

// As python_stack.hpp writes it: "file(line): function" a line, innermost first, whole lines only.
// Returns the bytes written.
template <typename Frames>
uint32_t write_frames(const Frames& frames, char* text, uint32_t size) {
  uint32_t used = 0;
  for (const auto& frame : frames) {  // innermost first
    const auto location = location_of(frame);
    if (!location) continue;
    const std::string& file = std::get<0>(*location);
    const size_t line = std::get<1>(*location);
    const int wanted = std::snprintf(text + used, size - used, "%s(%zu): %s\n", file.c_str(), line,
                                     function_of(frame));
    if (wanted <= 0 || static_cast<uint32_t>(wanted) >= size - used) break;
    used += static_cast<uint32_t>(wanted);
  }
  return used > 0 ? used - 1 : 0;  // without the last line's end
}

// How many frames the interpreter has in the calling thread; as if there were none where PyTorch
// doesn't tell.
template <bool kFound, typename Frames = TorchscriptFrames>
uint64_t count_torchscript_frames() {
  try {
    if constexpr (kFound) return Frames(torch::jit::currentCallstack()).size();
  } catch (...) {  // no memory
  }
  return 0;
}

// No text where that throws. Takes the GIL where Python knows the thread and TorchScript doesn't
// run in it.
template <bool kFound = kHasTorchscriptStack>
uint32_t operator_stack(const Globals& globals, char* text, uint32_t size) {
  try {
    uint32_t used = 0;
    if constexpr (kFound) used = write_frames(torch::jit::currentCallstack(), text, size);
    const auto read_python = recorder_hooks(globals).read_stack;
    return used != 0 || read_python == nullptr ? used : read_python(text, size);
  } catch (...) {
    return 0;
  }
}

}  // namespace recfn
