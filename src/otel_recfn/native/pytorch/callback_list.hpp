// PyTorch's list of global callbacks around fork(2).
//
// Each thread takes the list's lock in its first operator after a change of the list. If the process forks while a thread holds
// it, the lock is never released in the child: there the first operator of every new thread hangs, and so does whoever changes the
// list. Only PyTorch could make the lock anew. So after a recent change a fork waits a moment, in which operators that have begun
// get past the lock; Python's threads begin no others meanwhile, because the forking thread holds the GIL. Then the fork takes the
// lock once itself, which waits for a thread that still holds it.
#pragma once
#include <ATen/record_function.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "pytorch/features.hpp"

namespace recfn::stand_ins::at_names {

inline Absent hasGlobalCallbacks() { return {}; }

}  // namespace recfn::stand_ins::at_names

namespace at {
using namespace recfn::stand_ins::at_names;
}

namespace recfn {

constexpr bool kHasCallbackList = std::is_same_v<decltype(at::hasGlobalCallbacks()), bool>;

class CallbackListChanges {
 public:
  void note() { last_.store(now()); }

  // As a handler of pthread_atfork: nothing may be thrown.
  void let_operators_pass() noexcept {
    using namespace std::chrono;
    if (now() - last_.load() < nanoseconds(kRecent).count()) std::this_thread::sleep_for(kMoment);
    try {
      at::hasGlobalCallbacks();
    } catch (...) {  // no memory
    }
  }

 private:
  static constexpr std::chrono::seconds kRecent{1};
  static constexpr std::chrono::milliseconds kMoment{1};

  static int64_t now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

  std::atomic<int64_t> last_{0};
};

inline CallbackListChanges& callback_list_changes() {
  static auto* instance = new CallbackListChanges;
  return *instance;
}

}  // namespace recfn
