// The observer on PyTorch's RecordFunction: a library of its own, compiled at first use against the
// torch that is installed (pytorch/observer_build.py), loaded once and never unloaded.
//
// Four global callback pairs are registered once, for good. Three are for all scopes but the
// program's own: one that costs least, one for what few ask for (stacks, memory), and one that also
// needs inputs (shapes, FLOPs), which make every operator slower. At most one of them is enabled,
// and with it the fourth, for the program's ranges. They are switched by RecordFunction's own
// disable and reenable, which reach every thread's cached callbacks.
//
// The callbacks run in the operator's thread, mostly without the GIL. But for memory reports they
// return no ObserverContext (a heap allocation per operator would cost more than the record):
// begins and ends find each other by RecordFunction's handle.
#include <ATen/record_function.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>

#include "observer/begin.hpp"
#include "observer/memory.hpp"
#include "observer/launch.hpp"
#include "pytorch/callback_lists.hpp"
#include "pytorch/features.hpp"

#define RECFN_EXPORT extern "C" __attribute__((visibility("default")))

namespace recfn {
namespace {

enum Pair : size_t { kPlain, kWithExtras, kWithInputs, kOfProgram, kPairs };

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

// A range of the program's that is recorded: an optimizer's step, or what began in the thread with
// no range around it or directly in one of Python's.
struct TellsCpuTime {
  uint64_t handle = 0;
  int64_t began_ns = 0;  // what the thread had worked by then
  uint64_t context_version = 0;
};
constexpr uint32_t kMostOpen = 8;
thread_local TellsCpuTime tells_cpu_time[kMostOpen];  // by the depth of the thread's stack: what
                                                      // lies deeper may take a place

uint64_t context_version(const ThreadBuffer& buffer) {
  const auto version_of = shared->context_version.load(std::memory_order_relaxed);
  return version_of != nullptr ? version_of(buffer) : 0;
}

int64_t worked_until_now(ThreadBuffer& buffer) {
  return worked_until(*shared, buffer, read_ticks(shared->use_cycle_counter));
}

void note_cpu_time(const at::RecordFunction& fn, ThreadBuffer& buffer) {
  if (buffer.depth == 0 || buffer.depth > kMaxDepth) return;
  const uint32_t place = buffer.depth - 1;
  const OpenEntry& entry = buffer.stack[place];
  if (entry.key != fn.handle() || entry.ordinal() == 0) return;
  constexpr char kStep[] = "Optimizer.step#";
  uint32_t lowest = place;  // between that and the range are Python calls alone
  const auto lies_in_call = [&] {
    return lowest > buffer.floor && is_python_call(buffer, buffer.stack[lowest - 1]);
  };
  while (!buffer.stack[lowest].is_base() && lies_in_call()) --lowest;
  const bool is_outermost = buffer.stack[lowest].is_base() && buffer.context.enclosing == 0;
  const bool is_in_pythons = lowest > buffer.floor && buffer.stack[lowest - 1].is_entered();
  if (!is_outermost && !is_in_pythons && std::strncmp(fn.name(), kStep, sizeof kStep - 1) != 0)
    return;
  tells_cpu_time[place % kMostOpen] = {fn.handle(), worked_until_now(buffer),
                                       context_version(buffer)};
}

bool others_may_have_run(const TellsCpuTime& since, const ThreadBuffer& buffer) {
  const auto may_have = shared->may_have_been_suspended.load(std::memory_order_relaxed);
  return since.context_version != context_version(buffer) && (may_have == nullptr || may_have());
}

// What the thread worked in the range; -1 where it doesn't tell that, or other tasks may have run
// in the thread meanwhile.
int64_t cpu_time_of(const at::RecordFunction& fn, ThreadBuffer& buffer) {
  const TellsCpuTime& noted = tells_cpu_time[(buffer.depth - 1) % kMostOpen];
  if (noted.handle != fn.handle() || fn.isAsync() || others_may_have_run(noted, buffer)) return -1;
  return std::max<int64_t>(0, worked_until_now(buffer) - noted.began_ns);
}

template <Pair kPair>
std::unique_ptr<at::ObserverContext> start_with_extras(const at::RecordFunction& fn,
                                                       ThreadBuffer& buffer, bool selected) {
  const uint32_t asked = shared->extras.load(std::memory_order_relaxed);
  begin_with_extras<kPair >= kWithInputs>(fn, buffer, selected, asked);
  if (kPair == kOfProgram) note_cpu_time(fn, buffer);
  return (asked & kMemoryExtra) != 0 && may_hold_slot(fn) ? hold_slot(buffer) : nullptr;
}

thread_local bool looks_away = false;
struct NotSeen : at::ObserverContext {};

// Whether a range is asynchronous is asked at its end alone: it is certain only then, and asking
// costs a call.
template <Pair kPair>
std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& fn) {
  if (kPair == kOfProgram && looks_away) return std::make_unique<NotSeen>();
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
  if (kPair == kOfProgram && context != nullptr) return;  // NotSeen
  const bool holds_slot = kPair != kPlain && context != nullptr;
  if (holds_slot && fn.threadId() == at::RecordFunction::currentThreadId()) release_slot();
  ThreadBuffer* buffer = buffer_of_thread();
  if (C10_UNLIKELY(buffer == nullptr)) return;
  if constexpr (kPair == kOfProgram) {
    end_range(*shared, *buffer, fn.handle(), fn.threadId(), end_flags(fn),
              {{}, {}, {}, cpu_time_of(fn, *buffer)});
  } else {
    end_range(*shared, *buffer, fn.handle(), fn.threadId(), end_flags(fn), kNothingMore);
  }
}

void forget_thread(ThreadBuffer& buffer) {
  cached_buffer = nullptr;
  forget_launch<kHasLaunches>(buffer.carried);
}

constexpr Feature kFeatures[] = {
    {"torchscript_stack", kHasTorchscriptStack},
    {"memory", kHasMemoryReports},
    {"launches", kHasLaunches},
};

using Scopes = std::unordered_set<at::RecordScope, std::hash<at::RecordScope>>;

Scopes scopes_of(Pair pair) {
  Scopes scopes;
  for (size_t scope = 0; scope < static_cast<size_t>(at::RecordScope::NUM_SCOPES); ++scope) {
    const auto one = static_cast<at::RecordScope>(scope);
    if ((pair == kOfProgram) == (one == at::RecordScope::USER_SCOPE)) scopes.insert(one);
  }
  return scopes;
}

template <Pair kPair>
void register_pair(Registration& registration) {
  auto callback = at::RecordFunctionCallback(on_start<kPair>, on_end<kPair>)
                      .needsIds(true)
                      .scopes(scopes_of(kPair));
  registration.pairs[kPair] = at::addGlobalCallback(callback.needsInputs(kPair >= kWithInputs));
  at::disableCallback(registration.pairs[kPair]);
}

void register_callbacks(Registration& registration) {
  register_pair<kPlain>(registration);
  register_pair<kWithExtras>(registration);
  register_pair<kWithInputs>(registration);
  register_pair<kOfProgram>(registration);
  registration.registered = true;
}

void switch_pairs(Registration& registration, const std::unordered_set<size_t>& on) {
  for (size_t pair = 0; pair < kPairs; ++pair) {
    if (on.count(pair) == 0) at::disableCallback(registration.pairs[pair]);
  }
  for (const size_t pair : on) at::reenableCallback(registration.pairs[pair]);
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

void after_fork() { registration().mutex.unlock(); }

}  // namespace

// 0, 1 when the process can't be made to call us around forks, or 2 when the recorder was built
// from other headers than this library.
RECFN_EXPORT int recfn_observer_attach(const void* core_api) {
  const auto* api = static_cast<const CoreApi*>(core_api);
  if (api->layout != kCoreLayout) return 2;
  static const int at_fork = pthread_atfork(before_fork, after_fork, after_fork);
  if (at_fork != 0) return 1;
  core = api;
  shared = api->globals;
  shared->logical_thread_id.store(
      []() -> uint64_t { return at::RecordFunction::currentThreadId(); });
  shared->set_default_node_id.store(at::RecordFunction::setDefaultNodeId);
  shared->default_node_id.store(at::RecordFunction::getDefaultNodeId);
  if (const int64_t told = shared->node_id.load(); told >= 0)
    at::RecordFunction::setDefaultNodeId(told);
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
    switch_pairs(state, {pair_for(static_cast<uint32_t>(extras)), kOfProgram});
  });
}

RECFN_EXPORT int recfn_observer_disable() {
  return guarded([](Registration& state) {
    callback_list_changes().note();
    if (state.registered) switch_pairs(state, {});
  });
}

// The calling thread, and what PyTorch does for it in other threads, belongs to that profiler run
// from here on; 0 for none.
RECFN_EXPORT int recfn_observer_set_profiler(uint32_t profiler) {
  return guarded([profiler](Registration&) { mark_thread(profiler); });
}

// Whether the recorder asks which profiler run a thread works for.
RECFN_EXPORT void recfn_observer_watch_profilers(int on) {
  shared->read_profiler.store(on != 0 ? marked_profiler : nullptr);
}

// Whether memory is reported in the calling thread between its operators too. Who asks for that
// must call step_aside in the thread before a profiler of PyTorch's starts there.
RECFN_EXPORT int recfn_observer_keep_memory(int on) {
  return guarded([on](Registration&) { keep_slot(on != 0); });
}

// A profiler of PyTorch's is about to start in the calling thread.
RECFN_EXPORT void recfn_observer_step_aside() { take_out_of_slot(); }

// Whether the program's ranges that begin in the calling thread are not seen: they stand for ranges
// that Python has told of.
RECFN_EXPORT void recfn_observer_look_away(int away) { looks_away = away != 0; }

// What this PyTorch has of what pytorch/details.py lists, a word each, separated by spaces; a minus
// sign before what it lacks.
RECFN_EXPORT const char* recfn_observer_features() {
  static const auto* text = new std::string(told(kFeatures));
  return text->c_str();
}

RECFN_EXPORT const char* recfn_observer_last_error() { return registration().last_error.c_str(); }

}  // namespace recfn
