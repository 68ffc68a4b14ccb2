// Moments on a GPU, by what PyTorch's own legacy profiler takes them with (torch/csrc/profiler/stubs/base.h): an event on the
// current stream. Taking one needs no GIL and no memory of an allocator's, so it may be done in a report of memory, where PyTorch's
// allocator holds its lock.
#pragma once
#include <c10/core/Device.h>

#if __has_include(<torch/csrc/profiler/stubs/base.h>)
#include <torch/csrc/profiler/stubs/base.h>
#endif

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "pytorch/features.hpp"

namespace recfn::stand_ins::stub_names {
template <typename = void>
Absent cudaStubs() { return {}; }
}  // namespace recfn::stand_ins::stub_names

namespace torch::profiler::impl {
using namespace recfn::stand_ins::stub_names;
}

namespace recfn {
namespace {

struct Moment {
  c10::DeviceIndex device = -1;
  std::shared_ptr<void> event;
};

template <typename Stubs>
auto take_moment(const Stubs* stubs, Moment& moment, int64_t& cpu_ns)
    -> decltype(stubs->record(&moment.device, &moment.event, &cpu_ns), stubs->elapsed(&moment.event, &moment.event),
                stubs->enabled()) {
  const bool enabled = stubs->enabled();
  if (enabled) stubs->record(&moment.device, &moment.event, &cpu_ns);
  return enabled;
}

struct TriesMoment {
  template <typename Stubs>
  auto operator()(Stubs stubs) const
      -> decltype(take_moment(stubs, std::declval<Moment&>(), std::declval<int64_t&>()), void()) {}
};
using StubsPointer = decltype(torch::profiler::impl::cudaStubs());
constexpr bool kHasGpuTimes = kCallable<TriesMoment, StubsPointer>;

// False where PyTorch has no GPU here. May throw what PyTorch throws.
template <typename Stubs = StubsPointer>
bool gpu_moment(Moment& moment, int64_t& cpu_ns) {
  if constexpr (kHasGpuTimes) return take_moment(static_cast<Stubs>(torch::profiler::impl::cudaStubs()), moment, cpu_ns);
  return false;
}

template <typename Stubs = StubsPointer>
double gpu_elapsed_us(const Moment& begin, const Moment& end) {
  if constexpr (kHasGpuTimes) return static_cast<Stubs>(torch::profiler::impl::cudaStubs())->elapsed(&begin.event, &end.event);
  return 0;
}

// When memory changed, by event id, until somebody takes it.
struct MemoryTimes {
  static constexpr size_t kMost = size_t{1} << 20;

  std::atomic<bool> wanted{false};
  std::mutex mutex;
  std::unordered_map<uint64_t, Moment> moments;
};

MemoryTimes& memory_times() {
  static auto* instance = new MemoryTimes;
  return *instance;
}

// The change with that id happens now. What can't be noted has no time.
void time_memory(uint64_t event_id) noexcept try {
  MemoryTimes& times = memory_times();
  if (event_id == 0 || !times.wanted.load(std::memory_order_relaxed)) return;
  Moment moment;
  int64_t cpu_ns = 0;
  if (!gpu_moment(moment, cpu_ns)) return;
  const std::lock_guard lock(times.mutex);
  if (times.moments.size() < MemoryTimes::kMost) times.moments.emplace(event_id, std::move(moment));
} catch (...) {  // no memory, or an error of CUDA, which the program will meet itself
}

}  // namespace
}  // namespace recfn
