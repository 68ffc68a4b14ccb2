// The calling thread's own callbacks of ours in PyTorch's list, which PyTorch hands on to what works for the thread.
#pragma once
#include "callbacks/callback_slots.hpp"
#include "pytorch/local_callbacks.hpp"

namespace recfn {
namespace {

constexpr auto is_ours = [](const auto& entry) {
  const auto start = entry.callback_.start();
  return std::find(kStarts.begin(), kStarts.end(), start) != kStarts.end();
};

// PyTorch counts the handles that it gives from 1, and profiler_marker.hpp has the bit above this one.
at::CallbackHandle new_local_handle() {
  static at::CallbackHandle last = at::CallbackHandle{1} << 61;
  return ++last;
}

void set_thread_callbacks(const std::vector<std::shared_ptr<PythonCallback>>& callbacks) {
  change_local_callbacks([&](auto& entries) {
    remove_from(entries, is_ours);
    for (const auto& callback : callbacks) entries.emplace_back(*callback->pair, callback->torch_handle);
  });
}

}  // namespace
}  // namespace recfn
