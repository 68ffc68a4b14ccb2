// What bench_observer.py times: operators that do next to nothing, and the cheapest observer there
// can be, a pair of empty callbacks.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>

#include <chrono>
#include <memory>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

std::unique_ptr<at::ObserverContext> start(const at::RecordFunction&) { return nullptr; }
void end(const at::RecordFunction&, at::ObserverContext*) {}
at::CallbackHandle empty_pair = at::INVALID_CALLBACK_HANDLE;

}  // namespace

EXPORT void add_empty_pair(int needs_ids) {
  empty_pair =
      at::addGlobalCallback(at::RecordFunctionCallback(start, end).needsIds(needs_ids != 0));
}

EXPORT void remove_empty_pair() { at::removeCallback(empty_pair); }

// Nanoseconds per call of one of the cheapest operators there are, through the dispatcher.
EXPORT double time_operators(long count) {
  const at::Tensor tensor = at::empty({1});
  bool same = true;
  const auto began = std::chrono::steady_clock::now();
  for (long done = 0; done < count; ++done) same &= tensor.is_set_to(tensor);
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - began;
  return same ? took.count() / static_cast<double>(count) : -1;
}
