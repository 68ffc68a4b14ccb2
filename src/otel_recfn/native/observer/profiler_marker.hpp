// Which profiler run a thread works for, as a disabled thread-local callback whose handle carries the run's id.
//
// A disabled callback costs an operator nothing, and PyTorch carries it to whatever works for the thread.
#pragma once
#include <ATen/record_function.h>

#include <algorithm>
#include <cstdint>
#include <memory>

#include "pytorch/local_callbacks.hpp"

namespace recfn {

constexpr at::CallbackHandle kMarker = at::CallbackHandle{1} << 62;  // PyTorch counts its handles from 1

inline constexpr auto is_marker = [](const auto& entry) { return (entry.handle_ & kMarker) != 0; };

inline std::unique_ptr<at::ObserverContext> marker_is_never_called(const at::RecordFunction&) { return nullptr; }

// The calling thread works for `profiler` from here on, 0 for none. Other thread-local callbacks stay as they are.
inline void mark_thread(uint32_t profiler) {
  change_local_callbacks([profiler](auto& entries) {
    remove_from(entries, is_marker);
    if (profiler == 0) return;
    entries.emplace_back(at::RecordFunctionCallback(marker_is_never_called), kMarker | profiler);
    entries.back().enabled_ = false;
  });
}

// The run that the thread was marked with, here or where PyTorch took the mark from; 0 for none.
inline uint32_t marked_profiler() {
  uint32_t profiler = 0;
  look_at_local_callbacks([&profiler](const auto& entries) {
    const auto found = std::find_if(entries.rbegin(), entries.rend(), is_marker);  // usually the last one
    if (found != entries.rend()) profiler = static_cast<uint32_t>(found->handle_);
    return found != entries.rend();
  });
  return profiler;
}

}  // namespace recfn
