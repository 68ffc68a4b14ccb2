// How our libraries find out, as they are compiled, which details this PyTorch has beyond the core that has not changed in years
// (RecordFunction's name, scope, numbers, handle and thread, its callbacks and their registration).
//
// A member is looked up by a generic lambda that uses it: where the lambda can't be called, the member is missing. A name in a
// namespace can't be tried in that way, so each has a stand-in below, which PyTorch's namespace uses where it lacks the name.
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

namespace recfn::stand_ins {

namespace global_names {
template <typename... Any>
void THPVariable_Wrap(Any...) = delete;
}  // namespace global_names

namespace at_names {
inline Absent hasGlobalCallbacks() { return {}; }
inline Absent set_record_function_seed_for_testing(uint32_t) { return {}; }
Absent get_record_function_tls_();
template <typename... Any>
void set_record_function_tls_(Any...) = delete;
template <typename... Any>
Absent* getStepCallbacksUnlessEmpty(Any...) { return nullptr; }
}  // namespace at_names

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
template <typename... Any>
void toPyObject(Any...) = delete;
}  // namespace jit_names

namespace profiler_names {
struct ProfilerStateBase {};
struct ProfilerConfig {};
struct ProfilerState {};
struct ActiveProfilerType {};
}  // namespace profiler_names

}  // namespace recfn::stand_ins

using namespace recfn::stand_ins::global_names;
namespace at { using namespace recfn::stand_ins::at_names; }
namespace at::impl { using namespace recfn::stand_ins::impl_names; }
namespace c10 { using namespace recfn::stand_ins::c10_names; }
namespace torch::jit { using namespace recfn::stand_ins::jit_names; }
namespace torch::profiler::impl { using namespace recfn::stand_ins::profiler_names; }

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

// The details of a range that a RecordFunction tells, each looked up by itself: `read_or` gives a value where it is missing.

#define RECFN_DETAIL(NAME, ...) inline constexpr auto NAME = [](const auto& range) -> decltype(__VA_ARGS__) { return __VA_ARGS__; }

namespace details {

RECFN_DETAIL(sequence_nr, int64_t{range.seqNr()});
RECFN_DETAIL(thread_id, uint64_t{range.threadId()});
RECFN_DETAIL(handle, uint64_t{range.handle()});
RECFN_DETAIL(forward_thread_id, uint64_t{range.forwardThreadId()});
RECFN_DETAIL(debug_handle, int64_t{range.debugHandle()});
RECFN_DETAIL(is_async, bool{range.isAsync()});
RECFN_DETAIL(is_nccl_meta, bool{range.isNcclMeta()});
// PyTorch raises an internal error where anything else is asked.
RECFN_DETAIL(is_out_variant, range.scope() == decltype(range.scope())::STATIC_RUNTIME_OP && range.isStaticRuntimeOutVariant());
RECFN_DETAIL(inputs, range.inputs());
RECFN_DETAIL(kwinputs, range.kwinputs());
RECFN_DETAIL(outputs, range.outputs());
RECFN_DETAIL(num_inputs, size_t{range.num_inputs()});
RECFN_DETAIL(num_outputs, size_t{range.num_outputs()});
RECFN_DETAIL(needs_inputs, bool{range.needsInputs()});
RECFN_DETAIL(needs_outputs, bool{range.needsOutputs()});
RECFN_DETAIL(is_active, bool{range.isActive()});
RECFN_DETAIL(operator_name, range.operator_name());
RECFN_DETAIL(operator_schema, range.operator_schema());

}  // namespace details

#undef RECFN_DETAIL

template <typename Read>
constexpr bool kTold = kCallable<Read, const at::RecordFunction&>;

// Those that the observer and the callbacks both read.
inline constexpr Feature kRangeFeatures[] = {
    {"forward_thread_id", kTold<decltype(details::forward_thread_id)>},
    {"debug_handle", kTold<decltype(details::debug_handle)>},
    {"async", kTold<decltype(details::is_async)>},
    {"nccl_meta", kTold<decltype(details::is_nccl_meta)>},
    {"static_runtime", kTold<decltype(details::is_out_variant)>},
};

// The detail, or `otherwise` where this PyTorch doesn't tell it.
template <typename Read, typename Value>
C10_ALWAYS_INLINE Value read_or(const Read& read, const at::RecordFunction& range, Value otherwise) {
  if constexpr (kTold<Read>) {
    return read(range);
  } else {
    return otherwise;
  }
}

}  // namespace recfn
