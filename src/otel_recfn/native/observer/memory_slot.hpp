// PyTorch's memory reports as memory rows.
//
// PyTorch reports to one object alone: the one in slot PROFILER_STATE of the thread's debug info. The slot is meant for
// torch.profiler, which refuses to start where anything is in it. So ours is put there only where the slot is empty, and only
//
//   while an operator of PyTorch's own runs (others may run the program's Python, which may start a profiler), or
//   in a thread that keeps it, for which somebody promised to call step_aside before a profiler starts.
//
// PyTorch hands the slot's content to the threads that work for this one (backward passes, jit.fork), and removes it there again.
#pragma once
#include <ATen/record_function.h>

#include <cstring>
#include <memory>

#include "core/points.hpp"
#include "observer/memory_report.hpp"

namespace recfn {
namespace {

thread_local bool keeps_slot = false;   // the thread keeps ours in the slot between operators too
thread_local bool left_behind = false;  // ours couldn't be taken out, because others put information of theirs above it

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
  static const void* found() { return &keeps_slot; }
  static bool has_ours() { return false; }
  static void put() {}
  static void take() {}
};

using MemorySlot = std::conditional_t<kHasMemoryReports, Slot<ProfilerNames>, NoSlot>;

// Debug info can be removed in the reverse order only: where others put theirs above ours, ours stays. That is harmless, and the
// first operator that begins when theirs is gone takes ours over. Nothing may throw here.
void take_out_of_slot() noexcept {
  try {
    left_behind = MemorySlot::has_ours();
    if (!left_behind) return;
    MemorySlot::take();
    left_behind = false;
  } catch (...) {  // theirs stands above it
  }
}

// The context of a range that put ours into its thread's slot, and takes it out at its end.
struct HoldsSlot : at::ObserverContext {};

bool may_hold_slot(const at::RecordFunction& fn) {
  constexpr char kOwn[] = "aten::";
  return fn.scope() == at::RecordScope::FUNCTION && std::strncmp(fn.name(), kOwn, sizeof kOwn - 1) == 0;
}

// Called after the range's begin.
std::unique_ptr<at::ObserverContext> hold_slot(ThreadBuffer& buffer) try {
  const bool empty = MemorySlot::found() == nullptr;
  if (!empty && !MemorySlot::has_ours()) return nullptr;
  prepare_point(*shared, buffer);
  if (!empty && !left_behind) return nullptr;  // an enclosing range holds it, the thread keeps it, or PyTorch carried it
  auto holds = std::make_unique<HoldsSlot>();
  if (empty) MemorySlot::put();
  return holds;
} catch (...) {  // no memory: the operator's own is not reported
  return nullptr;
}

void release_slot() noexcept {
  if (!keeps_slot) take_out_of_slot();
}

// From here on the calling thread keeps ours in the slot, or no longer does. After a profiler for which ours was taken out, the
// next operator puts it back.
void keep_slot(bool keep) {
  keeps_slot = keep;
  if (!keep) {
    take_out_of_slot();
  } else if (MemorySlot::found() == nullptr) {
    MemorySlot::put();
  }
}

}  // namespace
}  // namespace recfn
