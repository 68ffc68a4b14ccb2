// The way from an operator's thread into Python: only while the interpreter lives, only into the
// main one, and leaving no trace.
//
// Taking the GIL while the interpreter finalizes ends the thread or hangs it. So each entry passes
// a door first. An atexit handler closes it before finalization begins, and waits for those who are
// inside.
#pragma once
#include <ATen/record_function.h>

#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>

#include "callbacks/torch_function.hpp"
#include "cpython/python.hpp"
#include "pytorch/callback_lists.hpp"

namespace recfn {

// Whether this thread is inside a callback, of this library's or of our Python ranges': what it
// does there reaches no callbacks.
inline thread_local bool inside_callback = false;

class Door {
 public:
  // Whether Python may be entered; if so, `leave` must follow.
  bool enter() {
    if (in_subinterpreter()) return false;
    inside_.fetch_add(1);
    if (!closed_.load()) return true;
    leave();
    return false;
  }

  void leave() { inside_.fetch_sub(1); }

  // Nobody enters any more. Waits, without the GIL, for other threads that are inside, but no
  // longer than this, so that a callback that doesn't return can't hold up the exit of the program.
  void close() {
    closed_.store(true);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(2);
    while (inside_.load() > own() && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
  }

  // In a forked child, where only the forking thread may be inside.
  void forked() { inside_.store(own()); }

 private:
  static int own() { return inside_callback ? 1 : 0; }

  std::atomic<bool> closed_{false};
  std::atomic<int> inside_{0};
};

inline Door door;

// In this scope Python is entered, where it may be, and what happens there reaches no callbacks.
class PythonEntry {
 public:
  PythonEntry() {
    if (door.enter()) python_.emplace();
  }
  ~PythonEntry() {
    inside_callback = was_inside_;
    if (!python_) return;
    python_.reset();
    door.leave();
  }
  PythonEntry(const PythonEntry&) = delete;
  PythonEntry& operator=(const PythonEntry&) = delete;

  explicit operator bool() const { return python_.has_value(); }

 private:
  const bool was_inside_ = std::exchange(inside_callback, true);
  std::optional<WithGil> python_;
};

// Callbacks in Python, each in one of 64 slots: PyTorch takes plain functions, so there is one
// start per slot, made by a template.
//
// A slot that becomes free is the last to be used again, so that a thread that still has its start
// in a list which it read before finds the slot empty. Ends need no slot, see ObservedRange.
// Everything here needs the GIL, except `is_live`.

constexpr size_t kSlots = 64;

struct PythonCallback {
  unsigned long long handle = 0;  // of callback.py
  Reference start, end, should_run;
  bool failed = false;  // it raised: not even its ends run
  size_t slot = 0;
  bool global = false;
  std::optional<at::RecordFunctionCallback> pair;  // what PyTorch has of it, under torch_handle
  at::CallbackHandle torch_handle = at::INVALID_CALLBACK_HANDLE;
};

std::unique_ptr<at::ObserverContext> run_start(size_t slot, const at::RecordFunction& function);
void run_end(const at::RecordFunction& function, at::ObserverContext* context);

template <size_t Slot>
std::unique_ptr<at::ObserverContext> slot_start(const at::RecordFunction& function) {
  return run_start(Slot, function);
}

template <size_t... Slot>
constexpr std::array<at::RecordFunctionCallback::StartCallback, kSlots> make_starts(
    std::index_sequence<Slot...>) {
  return {slot_start<Slot>...};
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
    // Runs Python when it goes, so it goes last.
    const std::shared_ptr<PythonCallback> dropped = std::move(taken_[slot]);
    taken_[slot] = nullptr;
    free_.push_back(slot);
  }

  std::shared_ptr<PythonCallback> at(size_t slot) const {
    return is_live(slot) ? taken_[slot] : nullptr;
  }

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

namespace {

// (handle, exception, name of the range) -> whether it is the program's own and goes on to it.
PyObject* report_error = nullptr;

// Hands on what a callback in Python raised to the program, where it is the program's own; else the
// callback isn't called again.
void forward_error(PythonCallback& callback, const at::RecordFunction& function) {
  Reference error(take_raised());
  PyObject* const name = to_text(function.name());
  const Reference is_the_programs(
      PyObject_CallFunction(report_error, "KON", callback.handle, error.get(), name));
  if (!is_the_programs) return raise_in_main_thread(take_raised());
  if (is_the_programs.get() == Py_True) return raise_in_main_thread(error.release());
  slots().fail(callback);
}

constexpr auto is_ours = [](const auto& entry) {
  const auto start = entry.callback_.start();
  return std::find(kStarts.begin(), kStarts.end(), start) != kStarts.end();
};

// PyTorch counts the handles that it gives from 1, and kMarker is the bit above this one.
at::CallbackHandle new_local_handle() {
  static at::CallbackHandle last = at::CallbackHandle{1} << 61;
  return ++last;
}

// The calling thread's own callbacks of ours in PyTorch's list, which PyTorch hands on to what
// works for the thread.
void set_thread_callbacks(const std::vector<std::shared_ptr<PythonCallback>>& callbacks) {
  change_local_callbacks([&](auto& entries) {
    remove_from(entries, is_ours);
    for (const auto& callback : callbacks) {
      entries.emplace_back(*callback->pair, callback->torch_handle);
    }
  });
}

// What a callback in Python takes of a range from its start to its end. It holds the callback
// itself, so that the end belongs to the start that ran even if the slot has another callback by
// then.
struct ObservedRange : at::ObserverContext {
  std::shared_ptr<PythonCallback> callback;
  Reference function, context;

  // Empty by now, because everything is dropped where the GIL is held; what is left is that of a
  // process that ends.
  ~ObservedRange() override {
    if (callback != nullptr) new std::shared_ptr<PythonCallback>(std::move(callback));
    function.release();
    context.release();
  }

  void drop() {
    function = Reference();
    context = Reference();
    callback = nullptr;
  }
};

bool is_wanted(PythonCallback& callback, const at::RecordFunction& function) {
  if (!callback.should_run) return true;
  const Reference member(scope_member(function.scope()));
  const Reference answer(PyObject_CallOneArg(callback.should_run.get(), member.get()));
  const int wanted = answer ? PyObject_IsTrue(answer.get()) : -1;
  if (wanted < 0) forward_error(callback, function);
  return wanted > 0;
}

bool call_start(ObservedRange& range, const at::RecordFunction& function) {
  range.function = new_function();
  if (range.function && range.callback->start) {
    const Exposure exposure(range.function, function, true);
    range.context =
        Reference(PyObject_CallOneArg(range.callback->start.get(), range.function.get()));
  }
  if (PyErr_Occurred() == nullptr) return true;
  forward_error(*range.callback, function);
  return false;
}

void call_end(ObservedRange& range, const at::RecordFunction& function) {
  if (!range.callback->end || range.callback->failed) return;
  const Exposure exposure(range.function, function, false);
  PyObject* arguments[] = {range.function.get(), range.context ? range.context.get() : Py_None};
  const Reference result(PyObject_Vectorcall(range.callback->end.get(), arguments, 2, nullptr));
  if (!result) forward_error(*range.callback, function);
}

}  // namespace

inline std::unique_ptr<at::ObserverContext> run_start(size_t slot,
                                                      const at::RecordFunction& function) {
  if (inside_callback || !slots().is_live(slot)) return nullptr;
  const PythonEntry python;
  if (!python) return nullptr;
  auto range = std::make_unique<ObservedRange>();
  range->callback = slots().at(slot);
  if (range->callback == nullptr) return nullptr;
  if (is_wanted(*range->callback, function) && call_start(*range, function) &&
      range->callback->end) {
    return range;
  }
  range->drop();
  return nullptr;
}

inline void run_end(const at::RecordFunction& function, at::ObserverContext* context) {
  if (context == nullptr) return;
  const PythonEntry python;
  if (!python) return;
  auto& range = *static_cast<ObservedRange*>(context);
  call_end(range, function);
  range.drop();
}

}  // namespace recfn
