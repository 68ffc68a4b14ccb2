// Ranges of the program's as RecordFunctions, for observers in PyTorch that are not ours: torch.profiler, the execution trace.
//
// Our own callbacks are left out of such a RecordFunction: they see the range already.
#pragma once
#include <ATen/record_function.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "pytorch/features.hpp"

namespace recfn {
namespace {

// As callbacks/range_in_torch.py hands it over.
struct RangeForOthers {
  const char* name;
  uint64_t name_size;
  uint64_t scope;
  int64_t sequence_nr;
  uint64_t forward_thread_id;
  int64_t debug_handle;
  uint64_t async;
};

using Start = at::RecordFunctionCallback::StartCallback;
extern const Start kStarts[4];  // the observer's own

// Beside the observer's own. Sorted. A list that was replaced stays, since a thread may be reading it; it is replaced once in a
// process.
std::atomic<const std::vector<Start>*> starts_of_callbacks{nullptr};

void leave_out(std::vector<Start> starts) {
  std::sort(starts.begin(), starts.end());
  starts_of_callbacks.store(new std::vector<Start>(std::move(starts)), std::memory_order_release);
}

bool is_ours(Start start) {
  if (std::find(std::begin(kStarts), std::end(kStarts), start) != std::end(kStarts)) return true;
  const auto* callbacks = starts_of_callbacks.load(std::memory_order_acquire);
  return callbacks != nullptr && std::binary_search(callbacks->begin(), callbacks->end(), start);
}

inline constexpr auto without_ours = [](auto& step) -> decltype(
    step.callbacks_.erase(step.callbacks_.begin(), step.callbacks_.end()), step.callbacks_.begin()->start_ == Start{},
    at::RecordFunction(std::move(step)), void()) {
  auto& pairs = step.callbacks_;
  const auto ours = [](const auto& pair) { return is_ours(pair.start_); };
  pairs.erase(std::remove_if(pairs.begin(), pairs.end(), ours), pairs.end());
};

using Step = std::decay_t<decltype(*at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE))>;
constexpr bool kHasOtherObservers = kCallable<decltype(without_ours), Step&>;

void begin_for_others(at::RecordFunction& range, const RangeForOthers& what) {
  const std::string name(what.name, what.name_size);
  if (what.async != 0) range._setAsync();
  range.setForwardThreadId(what.forward_thread_id);
  range.setDebugHandle(what.debug_handle);
  range.before(name, what.sequence_nr);
}

template <typename Callbacks>
std::unique_ptr<at::RecordFunction> range_for_others(const RangeForOthers& what, Callbacks callbacks) {
  if (!callbacks) return nullptr;
  if constexpr (kCallable<decltype(without_ours), decltype(*callbacks)>) {
    without_ours(*callbacks);
    if (callbacks->callbacks_.empty()) return nullptr;
    auto range = std::make_unique<at::RecordFunction>(std::move(*callbacks));
    begin_for_others(*range, what);
    return range;
  }
  return nullptr;
}

// Null where nobody else observes the calling thread.
std::unique_ptr<at::RecordFunction> range_for_others(const RangeForOthers& what) {
  return range_for_others(what, at::getStepCallbacksUnlessEmpty(static_cast<at::RecordScope>(what.scope)));
}

}  // namespace
}  // namespace recfn
