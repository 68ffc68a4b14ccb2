// The observer on PyTorch's RecordFunction: a library of its own, compiled at first use against the torch that is installed
// (pytorch/observer_build.py), loaded once and never unloaded.
//
// Three global callback pairs are registered once, for good: one that costs least, one for what few ask for (stacks, memory), and
// one that also needs inputs (shapes, FLOPs), which make every operator slower. At most one of them is enabled. They are switched
// by RecordFunction's own disable and reenable, which reach every thread's cached callbacks.
//
// The callbacks run in the operator's thread, mostly without the GIL. But for memory reports they return no ObserverContext (a
// heap allocation per operator would cost more than the record): begins and ends find each other by RecordFunction's handle.
#include <ATen/record_function.h>
#include <pthread.h>

#include <array>
#include <exception>
#include <memory>
#include <mutex>
#include <string>

#include "observer/begin.hpp"
#include "observer/memory.hpp"
#include "observer/launch.hpp"
#include "observer/ranges_for_others.hpp"
#include "pytorch/callback_lists.hpp"
#include "pytorch/features.hpp"

#define RECFN_EXPORT extern "C" __attribute__((visibility("default")))

namespace recfn {
namespace {

enum Pair : size_t { kPlain, kWithExtras, kWithInputs, kPairs };

Pair pair_for(uint32_t extras) {
  if ((extras & (kShapesExtra | kFlopsExtra)) != 0) return kWithInputs;
  return (extras & (kStackExtra | kMemoryExtra)) != 0 ? kWithExtras : kPlain;
}

struct Registration {
  std::mutex mutex;
  bool registered = false;
  std::array<at::CallbackHandle, kPairs> pairs{};
  std::string last_error;
};

Registration& registration() {
  static auto* instance = new Registration;
  return *instance;
}

uint32_t end_flags(const at::RecordFunction& fn) {
  uint32_t flags = fn.isAsync() ? uint32_t{kAsync} : 0u;
  if (C10_UNLIKELY(is_out_variant(fn))) flags |= kStaticRuntimeOutVariant;
  if (C10_UNLIKELY(fn.isNcclMeta())) flags |= kNcclMeta;
  return flags;
}

template <Pair kPair>
std::unique_ptr<at::ObserverContext> start_with_extras(const at::RecordFunction& fn, ThreadBuffer& buffer, bool selected) {
  const uint32_t asked = shared->extras.load(std::memory_order_relaxed);
  begin_with_extras<kPair == kWithInputs>(fn, buffer, selected, asked);
  return (asked & kMemoryExtra) != 0 && may_hold_slot(fn) ? hold_slot(buffer) : nullptr;
}

// Whether a range is asynchronous is asked at its end alone: it is certain only then, and asking costs a call.
template <Pair kPair>
std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& fn) {
  ThreadBuffer* buffer = buffer_of_thread();
  const auto scope = static_cast<uint32_t>(fn.scope());
  const bool selected = selects(shared->recording.load(std::memory_order_acquire), scope);
  if (C10_UNLIKELY(buffer == nullptr)) {
    shared->dropped_without_buffer.fetch_add(selected, std::memory_order_relaxed);
    return nullptr;
  }
  if constexpr (kPair != kPlain) return start_with_extras<kPair>(fn, *buffer, selected);
  begin_range<true>(*shared, *buffer, begin_of(fn), selected);
  return nullptr;
}

template <Pair kPair>
void on_end(const at::RecordFunction& fn, at::ObserverContext* context) {
  const bool holds_slot = kPair != kPlain && context != nullptr;
  if (holds_slot && fn.threadId() == at::RecordFunction::currentThreadId()) release_slot();
  ThreadBuffer* buffer = buffer_of_thread();
  if (C10_LIKELY(buffer != nullptr)) end_range(*shared, *buffer, fn.handle(), fn.threadId(), end_flags(fn), kNothingMore);
}

void forget_thread(ThreadBuffer& buffer) {
  cached_buffer = nullptr;
  forget_launch<kHasLaunches>(buffer.carried);
}

constexpr Feature kFeatures[] = {
    {"torchscript_stack", kHasTorchscriptStack},
    {"memory", kHasMemoryReports},
    {"other_observers", kHasOtherObservers},
    {"launches", kHasLaunches},
};

template <Pair kPair>
void register_pair(Registration& registration) {
  auto callback = at::RecordFunctionCallback(on_start<kPair>, on_end<kPair>).needsIds(true);
  registration.pairs[kPair] = at::addGlobalCallback(callback.needsInputs(kPair == kWithInputs));
  at::disableCallback(registration.pairs[kPair]);
}

const Start kStarts[kPairs] = {on_start<kPlain>, on_start<kWithExtras>, on_start<kWithInputs>};

void register_callbacks(Registration& registration) {
  register_pair<kPlain>(registration);
  register_pair<kWithExtras>(registration);
  register_pair<kWithInputs>(registration);
  registration.registered = true;
}

void disable_all_but(Registration& registration, at::CallbackHandle kept) {
  for (const at::CallbackHandle handle : registration.pairs) {
    if (handle != kept) at::disableCallback(handle);
  }
}

// No exception leaves this library.
template <typename Work>
int guarded(Work work) {
  Registration& state = registration();
  const std::lock_guard lock(state.mutex);
  try {
    work(state);
    return 0;
  } catch (const std::exception& error) {
    state.last_error = error.what();
  } catch (...) {
    state.last_error = "unknown C++ exception";
  }
  return 1;
}

// Lets the process fork only while no thread of ours is inside PyTorch's list of callbacks.
void before_fork() {
  registration().mutex.lock();
  callback_list_changes().let_operators_pass();
}

void after_fork() {
  registration().mutex.unlock();
}

}  // namespace

// 0, 1 when the process can't be made to call us around forks, or 2 when the recorder was built from other headers than this
// library.
RECFN_EXPORT int recfn_observer_attach(const void* core_api) {
  const auto* api = static_cast<const CoreApi*>(core_api);
  if (api->layout != kCoreLayout) return 2;
  static const int at_fork = pthread_atfork(before_fork, after_fork, after_fork);
  if (at_fork != 0) return 1;
  core = api;
  shared = api->globals;
  shared->logical_thread_id.store([]() -> uint64_t { return at::RecordFunction::currentThreadId(); });
  shared->set_default_node_id.store(at::RecordFunction::setDefaultNodeId);
  shared->default_node_id.store(at::RecordFunction::getDefaultNodeId);
  shared->enable.store([](bool enable) { at::enableRecordFunction(enable); });
  shared->is_enabled.store([] { return at::isRecordFunctionEnabled(); });
  shared->on_thread_exit.store(forget_thread);
  shared->torchscript_frames.store(count_torchscript_frames<kHasTorchscriptStack>);
  watch_launches<kHasLaunches>();
  return 0;
}

// `extras`: bits of Extra.
RECFN_EXPORT int recfn_observer_enable(int extras) {
  return guarded([extras](Registration& state) {
    callback_list_changes().note();
    if (!state.registered) register_callbacks(state);
    const at::CallbackHandle wanted = state.pairs[pair_for(static_cast<uint32_t>(extras))];
    disable_all_but(state, wanted);
    at::reenableCallback(wanted);
  });
}

RECFN_EXPORT int recfn_observer_disable() {
  return guarded([](Registration& state) {
    callback_list_changes().note();
    if (state.registered) disable_all_but(state, at::INVALID_CALLBACK_HANDLE);
  });
}

// The calling thread, and what PyTorch does for it in other threads, belongs to that profiler run from here on; 0 for none.
RECFN_EXPORT int recfn_observer_set_profiler(uint32_t profiler) {
  return guarded([profiler](Registration&) { mark_thread(profiler); });
}

// Whether the recorder asks which profiler run a thread works for.
RECFN_EXPORT void recfn_observer_watch_profilers(int on) { shared->read_profiler.store(on != 0 ? marked_profiler : nullptr); }

// Whether memory is reported in the calling thread between its operators too. Who asks for that must call step_aside in the thread
// before a profiler of PyTorch's starts there.
RECFN_EXPORT int recfn_observer_keep_memory(int on) {
  return guarded([on](Registration&) { keep_slot(on != 0); });
}

// A profiler of PyTorch's is about to start in the calling thread.
RECFN_EXPORT void recfn_observer_step_aside() { take_out_of_slot(); }

// A range of the program's begins for observers that are not ours. Null where there is none in the calling thread; else what
// recfn_observer_end_for_others ends, in any thread. No lock is held: such an observer may wait for the GIL.
RECFN_EXPORT void* recfn_observer_begin_for_others(const RangeForOthers* what) {
  try {
    return range_for_others(*what).release();
  } catch (...) {  // no memory
    return nullptr;
  }
}

RECFN_EXPORT void recfn_observer_end_for_others(void* begun, int async) {
  const std::unique_ptr<at::RecordFunction> range(static_cast<at::RecordFunction*>(begun));
  if (async != 0) range->_setAsync();
}

// The callbacks that start with these are ours too.
RECFN_EXPORT int recfn_observer_leave_out(const uint64_t* starts, uint64_t count) {
  return guarded([starts, count](Registration&) {
    std::vector<Start> callbacks(count);
    std::transform(starts, starts + count, callbacks.begin(), [](uint64_t start) { return reinterpret_cast<Start>(start); });
    leave_out(std::move(callbacks));
  });
}

// What this PyTorch has of what pytorch/details.py lists, a word each, separated by spaces; a minus sign before what it lacks.
RECFN_EXPORT const char* recfn_observer_features() {
  static const auto* text = new std::string(told(kFeatures));
  return text->c_str();
}

RECFN_EXPORT const char* recfn_observer_last_error() { return registration().last_error.c_str(); }

}  // namespace recfn
