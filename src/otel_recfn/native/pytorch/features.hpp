// How our libraries find out, as they are compiled, which details this PyTorch has beyond the core that has not changed in years
// (RecordFunction's name, scope, numbers, handle and thread, its callbacks and their registration).
//
// A member is looked up by a generic lambda that uses it: where the lambda can't be called, the member is missing. A name in a
// namespace can't be tried in that way, so each has a stand-in, which PyTorch's namespace uses where it lacks the name.
//
// What each detail is for, and what is lost without it: pytorch/details.py.
#pragma once
#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <type_traits>

namespace recfn {

// What a stand-in for a missing function returns.
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
template <size_t... Counts>
std::string told(const Feature (&... lists)[Counts]) {
  std::string text;
  const auto tell = [&text](const Feature& feature) {
    text += text.empty() ? "" : " ";
    text += feature.found ? "" : "-";
    text += feature.name;
  };
  (std::for_each(std::begin(lists), std::end(lists), tell), ...);
  return text;
}

}  // namespace recfn
