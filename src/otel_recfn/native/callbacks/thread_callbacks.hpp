// The calling thread's own callbacks of ours in PyTorch's list, which PyTorch hands on to what works for the thread.
#pragma once
#include "callbacks/callback_slots.hpp"
#include "pytorch/local_callbacks.hpp"

namespace recfn {
namespace {

// An entry that is never enabled, in the RecordFunctionTLS of threads that switched callbacks off, so that PyTorch hands this on to
// other threads. PyTorch's own switch would silence other observers as well.
std::unique_ptr<at::ObserverContext> muted(const at::RecordFunction&) { return nullptr; }

bool is_muted() {
  return look_at_local_callbacks([](const auto& entries) {
    return std::any_of(entries.begin(), entries.end(), [](const auto& entry) { return entry.callback_.start() == muted; });
  });
}

constexpr auto is_ours = [](const auto& entry) {
  const auto start = entry.callback_.start();
  return start == muted || std::find(kStarts.begin(), kStarts.end(), start) != kStarts.end();
};

// PyTorch counts the handles that it gives from 1, and profiler_marker.hpp has the bit above this one.
at::CallbackHandle new_local_handle() {
  static at::CallbackHandle last = at::CallbackHandle{1} << 61;
  return ++last;
}

// `enabled`: whether the thread runs callbacks at all.
void set_thread_callbacks(const std::vector<std::shared_ptr<PythonCallback>>& callbacks, bool enabled) {
  [[maybe_unused]] static const at::CallbackHandle muted_handle = new_local_handle();
  change_local_callbacks([&](auto& entries) {
    remove_from(entries, is_ours);
    for (const auto& callback : callbacks) entries.emplace_back(*callback->pair, callback->torch_handle);
    if (enabled) return;
    entries.emplace_back(at::RecordFunctionCallback(muted), muted_handle);
    entries.back().enabled_ = false;
  });
}

}  // namespace
}  // namespace recfn
