// Callbacks in Python, each in one of 64 slots: PyTorch takes plain functions, so there is one start per slot, made by a template.
//
// A slot that becomes free is the last to be used again, so that a thread that still has its start in a list which it read before
// finds the slot empty. Ends need no slot, see ObservedRange. Everything here needs the GIL, except `is_live`.
#pragma once
#include <Python.h>

// Python.h comes first.
#include <ATen/record_function.h>

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "callbacks/python_entry.hpp"

namespace recfn {

constexpr size_t kSlots = 64;

struct PythonCallback {
  unsigned long long handle = 0;  // of callback.py
  Reference start, end, should_run;
  unsigned scopes = 0;
  bool failed = false;  // it raised: not even its ends run
  size_t slot = 0;
  bool global = false;
  std::optional<at::RecordFunctionCallback> pair;  // what PyTorch has of it, under torch_handle
  at::CallbackHandle torch_handle = at::INVALID_CALLBACK_HANDLE;

  bool runs_in(at::RecordScope scope) const { return (scopes >> static_cast<unsigned>(scope) & 1) != 0; }
};

std::unique_ptr<at::ObserverContext> run_start(size_t slot, const at::RecordFunction& function);
void run_end(const at::RecordFunction& function, at::ObserverContext* context);

template <size_t Slot>
std::unique_ptr<at::ObserverContext> start_of_slot(const at::RecordFunction& function) {
  return run_start(Slot, function);
}

template <size_t... Slot>
constexpr std::array<at::RecordFunctionCallback::StartCallback, kSlots> make_starts(std::index_sequence<Slot...>) {
  return {start_of_slot<Slot>...};
}

constexpr auto kStarts = make_starts(std::make_index_sequence<kSlots>{});

class CallbackSlots {
 public:
  CallbackSlots() : free_(kSlots) { std::iota(free_.begin(), free_.end(), size_t{0}); }

  // False when every slot is taken.
  bool put(std::shared_ptr<PythonCallback> callback) {
    if (free_.empty()) return false;
    callback->slot = free_.front();
    free_.pop_front();
    live_[callback->slot].store(true);
    taken_[callback->slot] = std::move(callback);
    return true;
  }

  // The callback is not called again, though threads may still have it in their lists.
  void fail(PythonCallback& callback) {
    callback.failed = true;
    if (taken_[callback.slot].get() == &callback) live_[callback.slot].store(false);
  }

  // Needs no GIL. Whether the slot has a callback that may be called.
  bool is_live(size_t slot) const { return live_[slot].load(std::memory_order_relaxed); }

  void release(size_t slot) {
    live_[slot].store(false);
    const std::shared_ptr<PythonCallback> dropped = std::move(taken_[slot]);  // runs Python when it goes, so it goes last
    taken_[slot] = nullptr;
    free_.push_back(slot);
  }

  std::shared_ptr<PythonCallback> at(size_t slot) const { return is_live(slot) ? taken_[slot] : nullptr; }

  std::shared_ptr<PythonCallback> find(unsigned long long handle) const {
    for (const auto& callback : taken_) {
      if (callback != nullptr && callback->handle == handle) return callback;
    }
    return nullptr;
  }

  template <typename Work>
  void each(Work work) const {
    for (const auto& callback : taken_) {
      if (callback != nullptr) work(*callback);
    }
  }

 private:
  std::array<std::shared_ptr<PythonCallback>, kSlots> taken_;
  std::array<std::atomic<bool>, kSlots> live_{};
  std::deque<size_t> free_;
};

inline CallbackSlots& slots() {
  static auto* instance = new CallbackSlots;
  return *instance;
}

}  // namespace recfn
