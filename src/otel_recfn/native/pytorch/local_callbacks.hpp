// The calling thread's own callbacks, which PyTorch carries to whatever works for the thread: autograd's workers, jit.fork,
// at::launch.
#pragma once
#include <ATen/record_function.h>

#include <algorithm>

#include "pytorch/features.hpp"

namespace recfn::stand_ins::at_names {

Absent get_record_function_tls_();
template <typename... Any>
void set_record_function_tls_(Any...) = delete;

}  // namespace recfn::stand_ins::at_names

namespace at {
using namespace recfn::stand_ins::at_names;
}

namespace recfn {

using LocalState = std::decay_t<decltype(at::get_record_function_tls_())>;

inline constexpr auto entries_of = [](auto& state) -> decltype((state.sorted_tls_callbacks_)) {
  return state.sorted_tls_callbacks_;
};

constexpr bool kHasLocalCallbacks = compiles<LocalState&>([](auto& state) -> decltype(
    at::set_record_function_tls_(state), entries_of(state).begin()->handle_, entries_of(state).begin()->callback_.start(),
    entries_of(state).begin()->enabled_ = false,
    entries_of(state).emplace_back(at::RecordFunctionCallback(nullptr), at::CallbackHandle{}), void()) {});

template <typename State, typename Look>
bool look_at_local_callbacks_of(const State& state, const Look& look) {
  return look(entries_of(state));
}

// Hands the list to `look` and gives its answer; false where there is none.
template <typename Look>
bool look_at_local_callbacks(const Look& look) {
  if constexpr (kHasLocalCallbacks) {
    return look_at_local_callbacks_of(at::get_record_function_tls_(), look);
  } else {
    return false;
  }
}

template <typename State, typename Change>
void change_local_callbacks_of(State state, const Change& change) {
  auto& entries = entries_of(state);
  change(entries);
  std::stable_sort(entries.begin(), entries.end(), [](const auto& one, const auto& other) { return one.handle_ < other.handle_; });
  at::set_record_function_tls_(state);
}

// Lets `change` change the list, which stays in the order of the handles.
template <typename Change>
void change_local_callbacks(const Change& change) {
  if constexpr (kHasLocalCallbacks) change_local_callbacks_of(at::get_record_function_tls_(), change);
}

template <typename Entries, typename Is>
void remove_from(Entries& entries, const Is& is) {
  entries.erase(std::remove_if(entries.begin(), entries.end(), is), entries.end());
}

}  // namespace recfn
