// PyTorch's memory reports as memory rows.
//
// PyTorch reports to one object alone: the one in slot PROFILER_STATE of the thread's debug info.
// The slot is meant for torch.profiler, which refuses to start where anything is in it. So ours is
// put there only where the slot is empty, and only
//
// - while an operator of PyTorch's own runs (others may run the program's Python, which may start a
//   profiler), or
// - in a thread that keeps it, for which somebody promised to call step_aside before a profiler
//   starts.
//
// PyTorch hands the slot's content to the threads that work for this one (backward passes,
// jit.fork), and removes it there again.
#pragma once
#include <ATen/record_function.h>
#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>

#if __has_include(<torch/csrc/profiler/orchestration/observer.h>)
#include <torch/csrc/profiler/orchestration/observer.h>
#endif
#if __has_include(<c10/util/ThreadLocalDebugInfo.h>)
#include <c10/util/ThreadLocalDebugInfo.h>
#endif

#include "recording/begin_end.hpp"
#include "observer/propagation.hpp"
#include "pytorch/features.hpp"

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

// The object that PyTorch reports memory to. It is of the class that PyTorch expects in that place,
// and says that it is a disabled profiler, so that nothing else is asked of it. It has no state,
// because PyTorch shares it with other threads.
template <typename Names>
class MemoryReport final : public Names::Base {
 public:
  MemoryReport() : Names::Base(typename Names::Config(Names::State::Disabled)) {}

  bool memoryProfilingEnabled() const override { return wants_memory(); }
  typename Names::Type profilerType() override { return Names::Type::NONE; }

  // An allocator may hold its lock meanwhile, so nothing here may wait for the GIL.
  void reportMemoryUsage(void*, int64_t nbytes, size_t, size_t, c10::Device device) override {
    ThreadBuffer* buffer = wants_memory() ? current_buffer() : nullptr;
    if (buffer == nullptr) return;
    const std::string name = device.str();
    put_point(*shared, *buffer, kMemory, {name.data(), static_cast<uint32_t>(name.size())}, nbytes,
              kMayNotRefresh);
  }
};

// The debug info in which PyTorch looks for the object, and the three methods that ours overrides.
inline constexpr auto reports_memory = [](auto names)
    -> std::void_t<
        decltype(decltype(names)::Info::get(decltype(names)::Kind::PROFILER_STATE) == nullptr),
        decltype(decltype(names)::Info::_push(decltype(names)::Kind::PROFILER_STATE,
                                              std::shared_ptr<typename decltype(names)::Base>())),
        decltype(decltype(names)::Info::_pop(decltype(names)::Kind::PROFILER_STATE)),
        decltype(typename decltype(names)::Config(decltype(names)::State::Disabled)),
        decltype(decltype(names)::Type::NONE),
        decltype(static_cast<bool (decltype(names)::Base::*)()
                                 const>(&decltype(names)::Base::memoryProfilingEnabled)),
        decltype(static_cast<typename decltype(names)::Type (
                     decltype(names)::Base::*)()>(&decltype(names)::Base::profilerType)),
        decltype(static_cast<void (decltype(names)::Base::*)(
                     void*, int64_t, size_t, size_t,
                     c10::Device)>(&decltype(names)::Base::reportMemoryUsage))> {};

template <typename Names>
constexpr bool can_report() {
  if constexpr (kCallable<decltype(reports_memory), Names>) {
    return !std::is_abstract_v<MemoryReport<Names>>;
  }
  return false;
}
constexpr bool kHasMemoryReports = can_report<ProfilerNames>();

thread_local bool is_permanent = false;  // the thread keeps ours in the slot between operators too
// Ours couldn't be taken out, because others put information of theirs above it.
thread_local bool stale_slots = false;

// The slot, and the object of ours that is put into it.
template <typename Names>
struct Slot {
  static const auto& ours() {
    static const auto* instance = new auto(std::make_shared<MemoryReport<Names>>());
    return *instance;
  }
  static auto* found() { return Names::Info::get(Names::Kind::PROFILER_STATE); }
  static bool has_ours() { return found() == ours().get(); }
  static void put() { Names::Info::_push(Names::Kind::PROFILER_STATE, ours()); }
  static void take() { Names::Info::_pop(Names::Kind::PROFILER_STATE); }
};

// For a PyTorch without the slot: as if another profiler always had it.
struct NoSlot {
  static const void* found() { return &is_permanent; }
  static bool has_ours() { return false; }
  static void put() {}
  static void take() {}
};

using MemorySlot = std::conditional_t<kHasMemoryReports, Slot<ProfilerNames>, NoSlot>;

// Debug info can be removed in the reverse order only: where others put theirs above ours, ours
// stays. That is harmless, and the first operator that begins when theirs is gone takes ours over.
// Nothing may throw here.
void clear_slot() noexcept {
  try {
    stale_slots = MemorySlot::has_ours();
    if (!stale_slots) return;
    MemorySlot::take();
    stale_slots = false;
  } catch (...) {  // theirs stands above it
  }
}

// The context of a range that put ours into its thread's slot, and takes it out at its end.
struct OccupiesSlot : at::ObserverContext {};

bool may_occupy_slot(const at::RecordFunction& fn) {
  constexpr char kOwn[] = "aten::";
  return fn.scope() == at::RecordScope::FUNCTION &&
         std::strncmp(fn.name(), kOwn, sizeof kOwn - 1) == 0;
}

// Called after the range's begin.
std::unique_ptr<at::ObserverContext> occupy_slot(ThreadBuffer& buffer) try {
  const bool empty = MemorySlot::found() == nullptr;
  if (!empty && !MemorySlot::has_ours()) return nullptr;
  prepare_point(*shared, buffer);
  if (!empty && !stale_slots) {
    // An enclosing range holds it, the thread keeps it, or PyTorch carried it.
    return nullptr;
  }
  auto occupied = std::make_unique<OccupiesSlot>();
  if (empty) MemorySlot::put();
  return occupied;
} catch (...) {  // no memory: the operator's own is not reported
  return nullptr;
}

void release_slot() noexcept {
  if (!is_permanent) clear_slot();
}

// From here on the calling thread keeps ours in the slot, or no longer does. After a profiler for
// which ours was taken out, the next operator puts it back.
void set_permanent(bool permanent) {
  is_permanent = permanent;
  if (!permanent) {
    clear_slot();
  } else if (MemorySlot::found() == nullptr) {
    MemorySlot::put();
  }
}

}  // namespace
}  // namespace recfn
