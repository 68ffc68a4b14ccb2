#include "calls/thread_calls.hpp"

#include <pthread.h>

#include <algorithm>
#include <memory>

#include "cpython/python.hpp"

namespace recfn {

thread_local ThreadCalls* tls_calls RECFN_FAST_TLS = nullptr;

namespace {

std::vector<ThreadCalls*>& known() {
  static auto* instance = new std::vector<ThreadCalls*>;
  return *instance;
}

// Without the GIL: only noted here, and freed by who has it.
void on_thread_end(void* calls) {
  tls_calls = nullptr;
  static_cast<ThreadCalls*>(calls)->ended.store(true, std::memory_order_release);
}

bool make_key(pthread_key_t& key) { return pthread_key_create(&key, on_thread_end) == 0; }

bool tell_end_of_thread(ThreadCalls* calls) {
  static pthread_key_t key;
  static const bool made = make_key(key);
  return made && pthread_setspecific(key, calls) == 0;
}

template <typename Kept>
void free_unless(Kept is_kept) {
  const auto rest = std::partition(known().begin(), known().end(), is_kept);
  std::for_each(rest, known().end(), [](ThreadCalls* calls) { delete calls; });
  known().erase(rest, known().end());
}

void free_ended() {
  free_unless([](const ThreadCalls* calls) { return !calls->ended.load(std::memory_order_acquire); });
}

ThreadCalls* make() {
  free_ended();
  auto calls = std::make_unique<ThreadCalls>();
  known().push_back(calls.get());
  if (tell_end_of_thread(calls.get())) return calls.release();
  known().pop_back();
  return nullptr;
}

}  // namespace

ThreadCalls* thread_calls(uint64_t tracing) {
  if (tls_calls == nullptr) had_memory_for([] { tls_calls = make(); });
  if (tls_calls != nullptr && tls_calls->tracing != tracing) tls_calls->forget(), tls_calls->tracing = tracing;
  return tls_calls;
}

const std::vector<ThreadCalls*>& all_thread_calls() {
  free_ended();
  return known();
}

void forget_other_threads() {
  free_unless([](const ThreadCalls* calls) { return calls == tls_calls; });
}

}  // namespace recfn
