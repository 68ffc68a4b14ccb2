// PyTorch's list of global callbacks around fork(2).
//
// Each thread takes the list's lock in its first operator after a change of the list. If the
// process forks while a thread holds it, the lock is never released in the child: there the first
// operator of every new thread hangs, and so does whoever changes the list. Only PyTorch could make
// the lock anew. So after a recent change a fork waits a moment, in which operators that have begun
// get past the lock; Python's threads begin no others meanwhile, because the forking thread holds
// the GIL. Then the fork takes the lock once itself, which waits for a thread that still holds it.
#pragma once
#include <ATen/record_function.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

namespace recfn {

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

// The calling thread's own callbacks, which PyTorch carries to whatever works for the thread:
// autograd's workers, jit.fork, at::launch.

// Lets `change` change the list, which stays in the order of the handles.
template <typename Change>
void change_local_callbacks(const Change& change) {
  at::RecordFunctionTLS state = at::get_record_function_tls_();
  auto& entries = state.sorted_tls_callbacks_;
  change(entries);
  const auto by_handle = [](const auto& one, const auto& other) {
    return one.handle_ < other.handle_;
  };
  std::stable_sort(entries.begin(), entries.end(), by_handle);
  at::set_record_function_tls_(state);
}

template <typename Entries, typename Is>
void remove_from(Entries& entries, const Is& is) {
  entries.erase(std::remove_if(entries.begin(), entries.end(), is), entries.end());
}

}  // namespace recfn
