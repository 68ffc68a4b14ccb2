// What calls of a code object or C function are called, or what is not shown of them.
#pragma once
#include "cpython/python.hpp"

#include <string>

#include "core/known_calls.hpp"
#include "core/range_begin.hpp"

namespace recfn {

// As Python's `sources/calls/texts.py` has them.
enum class Hides : uint8_t { kNothing = 0, kItself = 1, kAllBelow = 2, kAskFrame = 3 };

struct CallName {
  std::string text;
  Hides hides = Hides::kNothing;
  PyObject* of_frame = nullptr;  // kAskFrame: names each call by its frame
  uint64_t hash = 0;             // of the text, as threads' dictionaries of names have it
  const char* in_library = nullptr;  // of a C function: its definition's name, where that can't be freed

  KnownCall known() const { return {hash, text.size()}; }
  Text name() const { return {text.data(), static_cast<uint32_t>(text.size())}; }
};

}  // namespace recfn
