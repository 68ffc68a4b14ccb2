// How our libraries find out, as they are compiled, which details this PyTorch has beyond what has
// not changed in years (RecordFunction with its callbacks and their registration, IValue, tensors).
//
// A member is looked up by a generic lambda that uses it: where the lambda can't be called, the
// member is missing. A name in a namespace can't be tried in that way, so each has a stand-in
// below, which PyTorch's namespace uses where it lacks the name.
//
// What each detail is for, and what is lost without it: pytorch/details.py.
#pragma once
#include <ATen/record_function.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <type_traits>

// What a stand-in for a missing function returns.
namespace recfn {
struct Absent {};
}  // namespace recfn

namespace recfn::fallbacks {

namespace impl_names {
struct ThreadLocalPythonObjects {};
}  // namespace impl_names

namespace c10_names {
struct SafePyObject {};
struct ThreadLocalDebugInfo {};
struct DebugInfoKind {};
}  // namespace c10_names

namespace jit_names {
Absent currentCallstack();
}  // namespace jit_names

namespace profiler_names {
struct ProfilerStateBase {};
struct ProfilerConfig {};
struct ProfilerState {};
struct ActiveProfilerType {};
}  // namespace profiler_names

}  // namespace recfn::fallbacks

namespace at::impl {
using namespace recfn::fallbacks::impl_names;
}
namespace c10 {
using namespace recfn::fallbacks::c10_names;
}
namespace torch::jit {
using namespace recfn::fallbacks::jit_names;
}
namespace torch::profiler::impl {
using namespace recfn::fallbacks::profiler_names;
}

namespace recfn {

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
template <size_t kCount>
std::string feature_list(const Feature (&features)[kCount]) {
  std::string text;
  for (const Feature& feature : features) {
    text += text.empty() ? "" : " ";
    text += feature.found ? "" : "-";
    text += feature.name;
  }
  return text;
}

// PyTorch raises an internal error where anything else is asked.
C10_ALWAYS_INLINE bool is_out_variant(const at::RecordFunction& range) {
  return range.scope() == at::RecordScope::STATIC_RUNTIME_OP && range.isStaticRuntimeOutVariant();
}

}  // namespace recfn
