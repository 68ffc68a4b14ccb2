// The observer on PyTorch's RecordFunction: a library of its own, compiled at first use against the
// torch that is installed (pytorch/observer_build.py), loaded once and never unloaded.
//
// Four global callback pairs are registered once, for good, and switched by RecordFunction's own
// disable and reenable, which reach every thread's cached callbacks:
//
//   pair          scope               is on                       reads of a range
//   kPlain        all but USER_SCOPE  where no more is asked for  name, times, numbers: costs least
//   kWithExtras   all but USER_SCOPE  for stacks or memory        these, too
//   kWithInputs   all but USER_SCOPE  for shapes or FLOPs         inputs, which makes each slower
//   kProgramPair  USER_SCOPE          with one of these           all of that, CPU time, and which
//                                                                 exception Python handles
//
// At most one of the first three is on. What few ask for has pairs of its own, since a single test
// of a bit in the common one cost each operator 2-4 ns.
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
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>

#include "observer/begin.hpp"
#include "observer/memory.hpp"
#include "observer/propagation.hpp"
#include "pytorch/callback_lists.hpp"
#include "pytorch/features.hpp"

#define RECFN_EXPORT extern "C" __attribute__((visibility("default")))

namespace recfn {
namespace {

enum Pair : size_t { kPlain, kWithExtras, kWithInputs, kProgramPair, kPairs };

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

C10_ALWAYS_INLINE uint32_t end_flags(const at::RecordFunction& fn) {
  uint32_t flags = fn.isAsync() ? uint32_t{kAsync} : 0u;
  if (C10_UNLIKELY(is_out_variant(fn))) flags |= kStaticRuntimeOutVariant;
  if (C10_UNLIKELY(fn.isNcclMeta())) flags |= kNcclMeta;
  return flags;
}

// A range of the program's that is recorded: an optimizer's step, or what began in the thread with
// no range around it or directly in one of Python's.
struct ReportsCpuTime {
  uint64_t handle = 0;
  int64_t began_ns = 0;  // what the thread had worked by then
  uint64_t context_version = 0;
};
constexpr uint32_t kMaxOpen = 8;
// By the depth of the thread's stack: what lies deeper may take a place.
thread_local ReportsCpuTime reports_cpu_time[kMaxOpen];

uint64_t context_version(const ThreadBuffer& buffer) {
  const auto version_of = shared->context_version.load(std::memory_order_relaxed);
  return version_of != nullptr ? version_of(buffer) : 0;
}

int64_t worked_until_now(ThreadBuffer& buffer) {
  return worked_until(*shared, buffer, read_ticks(shared->use_cycle_counter));
}

void note_cpu_time(const at::RecordFunction& fn, ThreadBuffer& buffer) {
  if (buffer.open.depth == 0 || buffer.open.depth > kMaxDepth) return;
  const uint32_t top = buffer.open.depth - 1;
  const OpenEntry& entry = buffer.stack[top];
  if (entry.key != fn.handle() || entry.ordinal() == 0) return;
  constexpr char kStep[] = "Optimizer.step#";
  uint32_t lowest = top;  // between that and the range are Python calls alone
  const auto is_in_call = [&] {
    return lowest > buffer.open.floor && is_python_call(buffer, buffer.stack[lowest - 1]);
  };
  while (!buffer.stack[lowest].is_base() && is_in_call()) --lowest;
  const bool is_outermost = buffer.stack[lowest].is_base() && buffer.preceding.context.root == 0;
  const bool is_in_pythons = lowest > buffer.open.floor && buffer.stack[lowest - 1].is_entered();
  if (!is_outermost && !is_in_pythons && std::strncmp(fn.name(), kStep, sizeof kStep - 1) != 0) {
    return;
  }
  reports_cpu_time[top % kMaxOpen] = {fn.handle(), worked_until_now(buffer),
                                      context_version(buffer)};
}

bool others_may_have_run(const ReportsCpuTime& since, const ThreadBuffer& buffer) {
  const auto may_have = recorder_hooks(*shared).may_have_been_suspended;
  return since.context_version != context_version(buffer) && (may_have == nullptr || may_have());
}

// What the thread worked in the range; -1 where it doesn't tell that, or other tasks may have run
// in the thread meanwhile.
int64_t range_cpu_time(const at::RecordFunction& fn, ThreadBuffer& buffer) {
  const ReportsCpuTime& noted = reports_cpu_time[(buffer.open.depth - 1) % kMaxOpen];
  if (noted.handle != fn.handle() || fn.isAsync() || others_may_have_run(noted, buffer)) return -1;
  return std::max<int64_t>(0, worked_until_now(buffer) - noted.began_ns);
}

// Those in the calling thread. What Python handles matters to the program's ranges alone, since no
// other range is left by Python code.
template <Pair kPair>
Exceptions exceptions_now() {
  Exceptions now;
  now.in_flight = std::min(exceptions_in_flight(), OpenEntry::kMaxInFlight);
  if constexpr (kPair == kProgramPair) now.handled = recorder_hooks(*shared).handled_exception();
  return now;
}

template <Pair kPair>
C10_ALWAYS_INLINE bool has_exceptions() {
  if (C10_UNLIKELY(exceptions_in_flight() != 0)) return true;
  return kPair == kProgramPair && exceptions_now<kPair>().handled != 0;
}

// A range that begins in a destructor or in an `except` block isn't left by the exception that is
// there already: its entry says so.
template <Pair kPair>
void note_exceptions(const at::RecordFunction& fn, ThreadBuffer& buffer) {
  if (buffer.open.depth == 0) return;
  OpenEntry& entry = buffer.stack[buffer.open.depth - 1];
  if (entry.key == fn.handle() && entry.ordinal() != 0) exceptions_now<kPair>().note(entry);
}

enum EndException : uint8_t { kNoException, kInFlight, kHandled };

// The exception that leaves the range: one that wasn't there as it began. If that was in another
// thread, it isn't known.
template <Pair kPair>
[[gnu::noinline]] EndException find_exception(const at::RecordFunction& fn,
                                              const ThreadBuffer& buffer) {
  const auto has_key = [&fn](const OpenEntry& entry) { return entry.key == fn.handle(); };
  const auto innermost = std::make_reverse_iterator(buffer.stack + buffer.open.depth);
  const auto end =
      std::make_reverse_iterator(buffer.stack + std::min(buffer.open.floor, buffer.open.depth));
  const auto open = std::find_if(innermost, end, has_key);
  if (open == end || open->ordinal() == 0) return kNoException;
  const Exceptions now = exceptions_now<kPair>();
  if (now.in_flight > open->in_flight()) return kInFlight;
  return now.handled != 0 && now.handled != open->handled() ? kHandled : kNoException;
}

template <Pair kPair>
C10_ALWAYS_INLINE void end_as_usual(const at::RecordFunction& fn, ThreadBuffer& buffer) {
  if constexpr (kPair == kProgramPair) {
    const Ending ending{range_cpu_time(fn, buffer)};
    end_range(*shared, buffer, fn.handle(), fn.threadId(), end_flags(fn), ending);
  } else {
    end_range(*shared, buffer, fn.handle(), fn.threadId(), end_flags(fn), kNothingMore);
  }
}

template <Pair kPair>
[[gnu::noinline]] void end_with_exceptions(const at::RecordFunction& fn, ThreadBuffer& buffer) {
  const EndException exception = find_exception<kPair>(fn, buffer);
  if (exception == kNoException) return end_as_usual<kPair>(fn, buffer);
  FailedEnd failed{fn.handle(), fn.threadId(), end_flags(fn)};
  if (kPair == kProgramPair) failed.cpu_time_ns = range_cpu_time(fn, buffer);
  failed.is_handled = exception == kHandled;
  recorder_hooks(*shared).end_failed(buffer, failed);
}

template <Pair kPair>
std::unique_ptr<at::ObserverContext> start_with_extras(const at::RecordFunction& fn,
                                                       ThreadBuffer& buffer, bool selected) {
  const uint32_t asked = shared->extras.load(std::memory_order_relaxed);
  begin_with_extras<kPair >= kWithInputs>(fn, buffer, selected, asked);
  if (kPair == kProgramPair) note_cpu_time(fn, buffer);
  if (has_exceptions<kPair>()) note_exceptions<kPair>(fn, buffer);
  return (asked & kMemoryExtra) != 0 && may_occupy_slot(fn) ? occupy_slot(buffer) : nullptr;
}

// A function of its own: what is called after the begin would have the hot path save registers
// across it.
template <Pair kPair>
[[gnu::noinline]] std::unique_ptr<at::ObserverContext> start_with_exceptions(
    const at::RecordFunction& fn, ThreadBuffer& buffer, bool selected) {
  begin_range<true>(*shared, buffer, make_begin(fn), selected);
  note_exceptions<kPair>(fn, buffer);
  return nullptr;
}

thread_local bool ignores_ranges = false;
struct NotSeen : at::ObserverContext {};

// Whether a range is asynchronous is asked at its end alone: it is certain only then, and asking
// costs each operator a call.
template <Pair kPair>
std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& fn) {
  if (kPair == kProgramPair && ignores_ranges) return std::make_unique<NotSeen>();
  ThreadBuffer* buffer = current_buffer();
  const auto scope = static_cast<uint32_t>(fn.scope());
  const bool selected = selects(shared->recording.load(std::memory_order_acquire), scope);
  if (C10_UNLIKELY(buffer == nullptr)) {
    shared->dropped_without_buffer.fetch_add(selected, std::memory_order_relaxed);
    return nullptr;
  }
  if constexpr (kPair != kPlain) return start_with_extras<kPair>(fn, *buffer, selected);
  if (has_exceptions<kPair>()) return start_with_exceptions<kPair>(fn, *buffer, selected);
  begin_range<true>(*shared, *buffer, make_begin(fn), selected);
  return nullptr;
}

template <Pair kPair>
void on_end(const at::RecordFunction& fn, at::ObserverContext* context) {
  if (kPair == kProgramPair && context != nullptr) return;  // NotSeen
  const bool occupies_slot = kPair != kPlain && context != nullptr;
  if (occupies_slot && fn.threadId() == at::RecordFunction::currentThreadId()) release_slot();
  ThreadBuffer* buffer = current_buffer();
  if (C10_UNLIKELY(buffer == nullptr)) return;
  if (has_exceptions<kPair>()) return end_with_exceptions<kPair>(fn, *buffer);
  end_as_usual<kPair>(fn, *buffer);
}

void forget_thread(ThreadBuffer& buffer) {
  cached_buffer = nullptr;
  forget_carrier<kHasLaunches>(buffer.propagation.carrier);
}

ObserverHooks make_hooks(bool reads_profiler) {
  ObserverHooks hooks;
  add_propagation<kHasLaunches>(hooks);
  hooks.torchscript_frames = count_torchscript_frames<kHasTorchscriptStack>;
  hooks.default_node_id = at::RecordFunction::getDefaultNodeId;
  hooks.set_default_node_id = at::RecordFunction::setDefaultNodeId;
  hooks.on_thread_exit = forget_thread;
  hooks.enable = [](bool enable) { at::enableRecordFunction(enable); };
  if (reads_profiler) hooks.read_profiler = marked_profiler;
  return hooks;
}

// Those that the recorder calls now or may call later: threads may run in either.
const ObserverHooks& hooks(bool reads_profiler) {
  static const ObserverHooks without_profiler = make_hooks(false);
  static const ObserverHooks with_profiler = make_hooks(true);
  return reads_profiler ? with_profiler : without_profiler;
}

constexpr Feature kFeatures[] = {
    {"torchscript_stack", kHasTorchscriptStack},
    {"memory", kHasMemoryReports},
    {"launches", kHasLaunches},
};

using Scopes = std::unordered_set<at::RecordScope, std::hash<at::RecordScope>>;

Scopes pair_scopes(Pair pair) {
  Scopes scopes;
  for (size_t scope = 0; scope < static_cast<size_t>(at::RecordScope::NUM_SCOPES); ++scope) {
    const auto one = static_cast<at::RecordScope>(scope);
    if ((pair == kProgramPair) == (one == at::RecordScope::USER_SCOPE)) scopes.insert(one);
  }
  return scopes;
}

template <Pair kPair>
void register_pair(Registration& registration) {
  auto callback = at::RecordFunctionCallback(on_start<kPair>, on_end<kPair>)
                      .needsIds(true)
                      .scopes(pair_scopes(kPair));
  registration.pairs[kPair] = at::addGlobalCallback(callback.needsInputs(kPair >= kWithInputs));
  at::disableCallback(registration.pairs[kPair]);
}

void register_callbacks(Registration& registration) {
  register_pair<kPlain>(registration);
  register_pair<kWithExtras>(registration);
  register_pair<kWithInputs>(registration);
  register_pair<kProgramPair>(registration);
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
  if (const int64_t first_node_id = shared->node_id.load(); first_node_id >= 0) {
    at::RecordFunction::setDefaultNodeId(first_node_id);
  }
  shared->is_enabled.store([] { return at::isRecordFunctionEnabled(); });
  shared->observer.store(&hooks(false));
  return 0;
}

// `extras`: bits of Extra.
RECFN_EXPORT int recfn_observer_enable(int extras) {
  return guarded([extras](Registration& state) {
    callback_list_changes().note();
    if (!state.registered) register_callbacks(state);
    switch_pairs(state, {pair_for(static_cast<uint32_t>(extras)), kProgramPair});
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
  shared->observer.store(&hooks(on != 0));
}

// Whether memory is reported in the calling thread between its operators too. Who asks for that
// must call step_aside in the thread before a profiler of PyTorch's starts there.
RECFN_EXPORT int recfn_observer_keep_memory(int on) {
  return guarded([on](Registration&) { set_permanent(on != 0); });
}

// A profiler of PyTorch's is about to start in the calling thread.
RECFN_EXPORT void recfn_observer_step_aside() { clear_slot(); }

// Whether the program's ranges that begin in the calling thread are not seen: they stand for ranges
// that Python has told of.
RECFN_EXPORT void recfn_observer_ignore_ranges(int away) { ignores_ranges = away != 0; }

// Features of this PyTorch, named as in pytorch/details.py and separated by spaces; missing ones
// have a leading '-'.
RECFN_EXPORT const char* recfn_observer_features() {
  static const auto* text = new std::string(feature_list(kFeatures));
  return text->c_str();
}

RECFN_EXPORT const char* recfn_observer_last_error() { return registration().last_error.c_str(); }

}  // namespace recfn
