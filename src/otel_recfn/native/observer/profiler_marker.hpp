// Which profiler run a thread works for, as a disabled thread-local callback whose handle carries the run's id.
//
// A disabled callback costs an operator nothing, and PyTorch carries thread-local callbacks to whatever works for the thread:
// autograd's workers, jit.fork, at::launch.
#pragma once
#include <ATen/record_function.h>

#include <algorithm>
#include <cstdint>
#include <memory>

namespace recfn {

constexpr at::CallbackHandle kMarker = at::CallbackHandle{1} << 62;  // PyTorch counts its handles from 1

inline bool is_marker(const at::RecordFunctionCallbacksEntry& entry) { return (entry.handle_ & kMarker) != 0; }

inline std::unique_ptr<at::ObserverContext> marker_is_never_called(const at::RecordFunction&) { return nullptr; }

inline at::RecordFunctionCallbacksEntry marker_of(uint32_t profiler) {
  at::RecordFunctionCallbacksEntry entry{at::RecordFunctionCallback(marker_is_never_called), kMarker | profiler};
  entry.enabled_ = false;
  return entry;
}

// The calling thread works for `profiler` from here on, 0 for none. Other thread-local callbacks stay as they are.
inline void mark_thread(uint32_t profiler) {
  at::RecordFunctionTLS state = at::get_record_function_tls_();
  at::RecordFunctionCallbacks& entries = state.sorted_tls_callbacks_;
  entries.erase(std::remove_if(entries.begin(), entries.end(), is_marker), entries.end());
  if (profiler != 0) entries.push_back(marker_of(profiler));
  const auto by_handle = [](const auto& one, const auto& other) { return one.handle_ < other.handle_; };
  std::stable_sort(entries.begin(), entries.end(), by_handle);
  at::set_record_function_tls_(state);
}

// What the thread was marked with, or what PyTorch carried there; 0 for none.
inline uint32_t marked_profiler() {
  const at::RecordFunctionCallbacks& entries = at::get_record_function_tls_().sorted_tls_callbacks_;
  const auto found = std::find_if(entries.rbegin(), entries.rend(), is_marker);  // the last one, as a rule
  return found != entries.rend() ? static_cast<uint32_t>(found->handle_) : 0;
}

}  // namespace recfn
