// PyTorch's memory reports as memory rows.
//
// PyTorch reports to one object alone: what slot PROFILER_STATE of the thread's debug info holds, and that slot is
// torch.profiler's, which refuses to start where anything is in it. So ours is in it, in threads where it was empty,
//
//   while an operator of PyTorch's own runs (others may run the program's Python, which may start a profiler), and
//   in a thread that keeps it, because somebody promised to call step_aside there before a profiler starts.
//
// PyTorch carries it on to what it runs for the thread elsewhere (backward passes, jit.fork), and takes it back there. Ours is of
// the class that all who look there take it for, and says that it is a disabled profiler.
#pragma once
#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>

#include "observer/observer_thread.hpp"

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

// Has no state: PyTorch carries it to other threads.
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
    put_point(*shared, *buffer, kMemory, {name.data(), static_cast<uint32_t>(name.size())}, nbytes, kMayNotLook);
  }
};

const std::shared_ptr<MemoryReports>& memory_reports() {
  static const auto* instance = new std::shared_ptr<MemoryReports>(std::make_shared<MemoryReports>());
  return *instance;
}

c10::DebugInfoBase* in_slot() { return ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE); }

thread_local bool keeps_slot = false;   // the thread does, beyond its operators
thread_local bool left_behind = false;  // ours couldn't be taken out, because others put information of theirs above it

void put_into_slot() { ThreadLocalDebugInfo::_push(c10::DebugInfoKind::PROFILER_STATE, memory_reports()); }

// Where others put information of theirs above ours, ours stays, which is harmless: the first operator that begins when theirs is
// gone takes it over. Nothing may throw here.
void take_out_of_slot() noexcept {
  try {
    left_behind = in_slot() == memory_reports().get();
    if (!left_behind) return;
    ThreadLocalDebugInfo::_pop(c10::DebugInfoKind::PROFILER_STATE);
    left_behind = false;
  } catch (...) {
  }
}

// The range put ours into the slot of its thread, and takes it out.
struct HoldsSlot : at::ObserverContext {};

bool may_hold_slot(const at::RecordFunction& fn) {
  constexpr char kOwn[] = "aten::";
  return fn.scope() == at::RecordScope::FUNCTION && std::strncmp(fn.name(), kOwn, sizeof kOwn - 1) == 0;
}

// After the range's begin.
std::unique_ptr<at::ObserverContext> hold_slot(ThreadBuffer& buffer) try {
  const c10::DebugInfoBase* found = in_slot();
  if (found != nullptr && found != memory_reports().get()) {
    operators_without_memory.fetch_add(1, std::memory_order_relaxed);
    return nullptr;
  }
  prepare_point(*shared, buffer);
  if (found != nullptr && !left_behind) return nullptr;  // an enclosing range holds it, the thread keeps it, or PyTorch carried it
  auto holds = std::make_unique<HoldsSlot>();
  if (found == nullptr) put_into_slot();
  return holds;
} catch (...) {
  return nullptr;
}

void release_slot() noexcept {
  if (!keeps_slot) take_out_of_slot();
}

// From here on, or no more, the calling thread keeps the slot. After a profiler that ours made room for, the next operator puts
// ours back.
void keep_slot(bool keep) {
  keeps_slot = keep;
  if (!keep) {
    take_out_of_slot();
  } else if (in_slot() == nullptr) {
    put_into_slot();
  }
}

}  // namespace
}  // namespace recfn
