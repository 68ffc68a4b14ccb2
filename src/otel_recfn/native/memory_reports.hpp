// PyTorch's memory reports as memory rows.
//
// PyTorch reports to one object alone: what slot PROFILER_STATE of the thread's debug info holds, and that slot is
// torch.profiler's, which refuses to start where anything is in it. So ours is in it only while an operator of PyTorch's own runs
// (others may run the program's Python, which may start a profiler), in threads where it was empty. It is of the class that all
// who look there take it for, and says that it is a disabled profiler.
#pragma once
#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>

#include "observer_thread.hpp"

namespace recfn {
namespace {

namespace profiler = torch::profiler::impl;
using c10::ThreadLocalDebugInfo;

// Operators that found the slot taken by another profiler.
std::atomic<uint64_t> operators_without_memory{0};

bool wants_memory() {
  return (shared->recording.load(std::memory_order_acquire) & kRecordingBit) != 0 &&
         (shared->extras.load(std::memory_order_relaxed) & kMemoryExtra) != 0;
}

// Has no state: PyTorch may carry it to other threads with the operator's debug info.
class MemoryReports final : public profiler::ProfilerStateBase {
 public:
  MemoryReports() : ProfilerStateBase(profiler::ProfilerConfig(profiler::ProfilerState::Disabled)) {}

  bool memoryProfilingEnabled() const override { return wants_memory(); }
  profiler::ActiveProfilerType profilerType() override { return profiler::ActiveProfilerType::NONE; }

  // An allocator may hold its lock meanwhile, so nothing here may wait for the GIL.
  void reportMemoryUsage(void*, int64_t nbytes, size_t, size_t, c10::Device device) override {
    ThreadBuffer* buffer = wants_memory() ? buffer_of_thread() : nullptr;
    if (buffer == nullptr) return;
    const std::string name = device.str();
    put_point(*shared, *buffer, kMemory, {name.data(), static_cast<uint32_t>(name.size())}, nbytes, kDoNotLookAround);
  }
};

const std::shared_ptr<MemoryReports>& memory_reports() {
  static const auto* instance = new std::shared_ptr<MemoryReports>(std::make_shared<MemoryReports>());
  return *instance;
}

c10::DebugInfoBase* in_slot() { return ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE); }

// The range put ours into the slot of its thread, and takes it out.
struct HoldsSlot : at::ObserverContext {};

bool may_hold_slot(const at::RecordFunction& fn) {
  constexpr char kOwn[] = "aten::";
  return fn.scope() == at::RecordScope::FUNCTION && std::strncmp(fn.name(), kOwn, sizeof kOwn - 1) == 0;
}

// After the range's begin. Where ours is in the slot already an enclosing range holds it, or it was left there: see release_slot.
std::unique_ptr<at::ObserverContext> hold_slot(ThreadBuffer& buffer) try {
  const c10::DebugInfoBase* found = in_slot();
  if (found != nullptr && found != memory_reports().get()) {
    operators_without_memory.fetch_add(1, std::memory_order_relaxed);
    return nullptr;
  }
  if (found != nullptr && buffer.depth - buffer.floor > 1) return nullptr;
  if (is_base(buffer)) look_around(*shared, buffer);
  auto holds = std::make_unique<HoldsSlot>();
  if (found == nullptr) ThreadLocalDebugInfo::_push(c10::DebugInfoKind::PROFILER_STATE, memory_reports());
  return holds;
} catch (...) {
  return nullptr;
}

// Where others put information of theirs above ours meanwhile, ours stays: the first operator outside every other range that
// begins when theirs is gone takes it over. It is harmless until then, and nothing may throw here.
void release_slot() noexcept {
  try {
    if (in_slot() == memory_reports().get()) ThreadLocalDebugInfo::_pop(c10::DebugInfoKind::PROFILER_STATE);
  } catch (...) {
  }
}

}  // namespace
}  // namespace recfn
