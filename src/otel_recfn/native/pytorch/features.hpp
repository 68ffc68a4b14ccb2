// How our libraries find out, as they are compiled, which details this PyTorch has beyond the core that has not changed in years
// (RecordFunction's name, scope, numbers, handle and thread, its callbacks and their registration).
//
// Members are looked up by trying: a generic lambda that can't be called has found nothing. A name of a namespace can't be tried
// where it is missing, so each has a stand-in, which PyTorch's namespace is told to use where it has no such name of its own.
//
// What each detail is for, and what is lost without it: pytorch/details.py.
#pragma once
#include <cstddef>
#include <string>
#include <type_traits>

namespace recfn {

// Stands for a type that PyTorch doesn't have.
struct Absent {};

// Whether `Try`, a generic lambda that says what it returns, can be called with these.
template <typename Try, typename... Arguments>
constexpr bool kCallable = std::is_invocable_v<Try, Arguments...>;

template <typename... Arguments, typename Try>
constexpr bool compiles(Try) {
  return kCallable<Try, Arguments...>;
}

struct Feature {
  const char* name;
  bool found;
};

// A word each, separated by spaces; a minus sign stands before what was not found.
template <size_t Count>
std::string told(const Feature (&features)[Count]) {
  std::string text;
  for (const Feature& feature : features) {
    text += text.empty() ? "" : " ";
    text += feature.found ? "" : "-";
    text += feature.name;
  }
  return text;
}

}  // namespace recfn
