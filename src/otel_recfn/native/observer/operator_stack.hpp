// The call stack that led to an operator: TorchScript's where its interpreter runs, else Python's.
#pragma once
#include <torch/csrc/jit/runtime/interpreter.h>

#include <cstdio>
#include <string>

#include "observer/observer_thread.hpp"

namespace recfn {

// As python_stack.hpp writes it: "file(line): function" a line, innermost first, whole lines only. Returns the bytes written.
inline uint32_t torchscript_stack(char* text, uint32_t size) {
  uint32_t used = 0;
  for (const torch::jit::StackEntry& frame : torch::jit::currentCallstack()) {  // innermost first
    const auto place = frame.range.file_line_col();
    if (!place) continue;
    const auto& [file, line, column] = *place;
    const std::string& function = frame.filename;  // that is what it holds
    const int wanted = std::snprintf(text + used, size - used, "%s(%zu): %s\n", file.c_str(), line, function.c_str());
    if (wanted <= 0 || static_cast<uint32_t>(wanted) >= size - used) break;
    used += static_cast<uint32_t>(wanted);
  }
  return used > 0 ? used - 1 : 0;  // without the last line's end
}

// Nothing rather than an exception. Takes the GIL where Python knows the thread and TorchScript doesn't run in it.
inline uint32_t operator_stack(const Globals& globals, char* text, uint32_t size) {
  try {
    const uint32_t used = torchscript_stack(text, size);
    const auto read_python = globals.read_stack.load(std::memory_order_relaxed);
    return used != 0 || read_python == nullptr ? used : read_python(text, size);
  } catch (...) {
    return 0;
  }
}

}  // namespace recfn
