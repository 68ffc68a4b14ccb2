// What calls are called, as Python's `sources/calls.py` says it: made here, because running Python in a profile function
// would run the program's signal handlers too, in the middle of something else.
#pragma once
#include "calls/c_function.hpp"
#include "core/known_calls.hpp"
#include "core/record.hpp"

#include <string>
#include <vector>

namespace recfn {

// What is not shown of a call, or who names it.
enum class Hides : uint8_t { kNothing = 0, kItself = 1, kAllBelow = 2, kAskFrame = 3 };

// What calls of a code object or C function are called, or what is not shown of them.
struct CallName {
  std::string text;
  Hides hides = Hides::kNothing;
  PyObject* of_frame = nullptr;  // kAskFrame: names each call by its frame
  uint64_t hash = 0;             // of the text, as threads' dictionaries of names have it
  const char* in_library = nullptr;  // of a C function: its definition's name, where that can't be freed

  KnownCall known() const { return {hash, text.size()}; }
  Text name() const { return {text.data(), static_cast<uint32_t>(text.size())}; }
};

class CallTexts {
 public:
  // Reads what Python's ProgramTexts says. False with the error set.
  bool read(PyObject* texts);

  // Of calls that run this code from that line on. Nothing with Hides::kAskFrame where Python has to be asked.
  CallName of_code(PyCodeObject* code, int line) const;
  // A line of code, as calls of it are called; empty for ours.
  std::string of_line(PyCodeObject* code, int line) const;
  // Of calls of a C function.
  static std::string of_function(PyObject* callable, const CFunction& function);
  // Whether calls of this C function, which has a definition, are called that.
  static bool is_of_function(const std::string& text, const CFunction& function);

 private:
  using Texts = std::vector<std::string>;
  bool selects(const std::string& file, const std::string& trimmed) const;
  std::string trimmed(const std::string& file) const;
  static std::string text_of(const std::string& shown, PyCodeObject* code, int line);

  Texts prefixes_, own_, own_that_calls_, asked_, included_, excluded_;
};

}  // namespace recfn
