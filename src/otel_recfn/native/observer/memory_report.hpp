// The object that PyTorch reports memory to. It is of the class that PyTorch expects in that place, and says that it is a disabled
// profiler, so that nothing else is asked of it.
#pragma once
#include <c10/core/Device.h>

#if __has_include(<torch/csrc/profiler/orchestration/observer.h>)
#include <torch/csrc/profiler/orchestration/observer.h>
#endif
#if __has_include(<c10/util/ThreadLocalDebugInfo.h>)
#include <c10/util/ThreadLocalDebugInfo.h>
#endif

#include <memory>
#include <string>

#include "core/points.hpp"
#include "observer/gpu_times.hpp"
#include "observer/observer_thread.hpp"
#include "pytorch/features.hpp"

namespace recfn::stand_ins {

namespace c10_names {
struct ThreadLocalDebugInfo {};
struct DebugInfoKind {};
}  // namespace c10_names

namespace profiler_names {
struct ProfilerStateBase {};
struct ProfilerConfig {};
struct ProfilerState {};
struct ActiveProfilerType {};
}  // namespace profiler_names

}  // namespace recfn::stand_ins

namespace c10 {
using namespace recfn::stand_ins::c10_names;
}

namespace torch::profiler::impl {
using namespace recfn::stand_ins::profiler_names;
}

namespace recfn {
namespace {

// PyTorch's names for what is needed here.
struct ProfilerNames {
  using Info = c10::ThreadLocalDebugInfo;
  using Kind = c10::DebugInfoKind;
  using Base = torch::profiler::impl::ProfilerStateBase;
  using Config = torch::profiler::impl::ProfilerConfig;
  using State = torch::profiler::impl::ProfilerState;
  using Type = torch::profiler::impl::ActiveProfilerType;
};

bool wants_memory() {
  return (shared->recording.load(std::memory_order_acquire) & kRecordingBit) != 0 &&
         (shared->extras.load(std::memory_order_relaxed) & kMemoryExtra) != 0;
}

// Has no state, because PyTorch shares it with other threads.
template <typename Names>
class MemoryReport final : public Names::Base {
 public:
  MemoryReport() : Names::Base(typename Names::Config(Names::State::Disabled)) {}

  bool memoryProfilingEnabled() const override { return wants_memory(); }
  typename Names::Type profilerType() override { return Names::Type::NONE; }

  // An allocator may hold its lock meanwhile, so nothing here may wait for the GIL.
  void reportMemoryUsage(void*, int64_t nbytes, size_t, size_t, c10::Device device) override {
    ThreadBuffer* buffer = wants_memory() ? buffer_of_thread() : nullptr;
    if (buffer == nullptr) return;
    const std::string name = device.str();
    time_memory(put_point(*shared, *buffer, kMemory, {name.data(), static_cast<uint32_t>(name.size())}, nbytes, kMayNotLook));
  }
};

// Whether MemoryReport can be compiled: this PyTorch has the three methods that it overrides.
template <typename Names, typename = void>
struct CanReport : std::false_type {};

template <typename Names>
struct CanReport<Names, std::void_t<
    decltype(typename Names::Config(Names::State::Disabled)), decltype(Names::Type::NONE),
    decltype(static_cast<bool (Names::Base::*)() const>(&Names::Base::memoryProfilingEnabled)),
    decltype(static_cast<typename Names::Type (Names::Base::*)()>(&Names::Base::profilerType)),
    decltype(static_cast<void (Names::Base::*)(void*, int64_t, size_t, size_t, c10::Device)>(&Names::Base::reportMemoryUsage))>>
    : std::bool_constant<!std::is_abstract_v<MemoryReport<Names>>> {};

// Whether this PyTorch has the debug info in which it looks for the object.
template <typename Names, typename = void>
struct HasSlot : std::false_type {};

template <typename Names>
struct HasSlot<Names, std::void_t<
    decltype(Names::Info::get(Names::Kind::PROFILER_STATE) == nullptr),
    decltype(Names::Info::_push(Names::Kind::PROFILER_STATE, std::shared_ptr<typename Names::Base>())),
    decltype(Names::Info::_pop(Names::Kind::PROFILER_STATE))>> : std::true_type {};

constexpr bool kHasMemoryReports = std::conjunction_v<HasSlot<ProfilerNames>, CanReport<ProfilerNames>>;

}  // namespace
}  // namespace recfn
