// Has PyTorch carry what a thread is in to the threads that work for it: autograd's workers,
// torch.jit.fork, collectives.
//
// PyTorch's thread-local state holds objects by name, and is copied, pointers and no more, where
// work is launched. So while nobody else has the object, nothing was launched since it was set, and
// it may be changed in place.
#pragma once
#include <ATen/record_function.h>
#include <c10/macros/Macros.h>
#include <cxxabi.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#if __has_include(<ATen/ThreadLocalPythonObjects.h>)
#include <ATen/ThreadLocalPythonObjects.h>
#endif

#include "recording/begin_end.hpp"
#include "pytorch/callback_lists.hpp"
#include "pytorch/features.hpp"

namespace recfn {
namespace {

// The calling thread's buffer, as the recorder gave it; forgotten when the recorder says that the
// thread ends.
thread_local ThreadBuffer* cached_buffer RECFN_FAST_TLS = nullptr;

const CoreApi* core = nullptr;  // the recorder's
Globals* shared = nullptr;

// How many exceptions of C++ unwind the calling thread's stack; only in a thread with a cached
// buffer. Each begin and end asks, and would pay for a call of std::uncaught_exceptions(). So what
// that reads, whose layout the C++ ABI fixes, is found once a thread and read directly.
#if defined(__GLIBCXX__)
struct ExceptionGlobals {
  void* caught;
  unsigned int uncaught;
};
thread_local const ExceptionGlobals* exception_globals RECFN_FAST_TLS = nullptr;

void find_exceptions() {
  exception_globals = reinterpret_cast<const ExceptionGlobals*>(abi::__cxa_get_globals());
}
uint32_t exceptions_in_flight() { return exception_globals->uncaught; }
#else
void find_exceptions() {}
uint32_t exceptions_in_flight() { return static_cast<uint32_t>(std::uncaught_exceptions()); }
#endif

[[gnu::noinline]] ThreadBuffer* first_buffer() {
  find_exceptions();
  cached_buffer = core->thread_buffer();
  return cached_buffer;
}

// Null in a dying thread, and in one that there was no memory for.
ThreadBuffer* current_buffer() {
  return C10_LIKELY(cached_buffer != nullptr) ? cached_buffer : first_buffer();
}

// PyTorch takes it for a Python object, of which there is none.
template <typename Object>
struct ContextObject : Object {
  explicit ContextObject(const PropagatedContext& propagated)
      : Object(nullptr, nullptr), propagated(propagated) {}
  ~ContextObject() { recorder_hooks(*shared).release(propagated.entry); }
  PropagatedContext propagated;
};

template <typename Objects, typename Object>
struct CarrierState {
  using PropagatedObject = ContextObject<Object>;

  static const std::string& key() {
    static const auto* instance = new std::string("recfn.launch");
    return *instance;
  }

  static const PropagatedContext* found() {
    if (!Objects::contains(key())) return nullptr;
    return &static_cast<const PropagatedObject*>(Objects::get(key()).get())->propagated;
  }

  // `carrier` holds what the thread set last: its state has it, too, if no copy of the state was
  // installed since.
  static void* set(void*& carrier, const PropagatedContext& propagated) try {
    auto* last = static_cast<std::shared_ptr<PropagatedObject>*>(carrier);
    if (last != nullptr && last->use_count() == 2 &&
        (*last)->propagated.thread == propagated.thread) {
      return std::exchange((*last)->propagated, propagated).entry;
    }
    auto made = std::make_unique<std::shared_ptr<PropagatedObject>>(
        std::make_shared<PropagatedObject>(PropagatedContext{}));
    Objects::set(key(), *made);
    (*made)->propagated = propagated;
    forget(carrier);
    carrier = made.release();
    return nullptr;
  } catch (...) {  // no memory: what is launched lies in what was propagated before
    return propagated.entry;
  }

  static void forget(void*& carrier) {
    delete static_cast<std::shared_ptr<PropagatedObject>*>(std::exchange(carrier, nullptr));
  }
};

inline constexpr auto carries_objects = [](auto& object, const auto& objects)
    -> decltype(std::decay_t<decltype(object)>(nullptr, nullptr), objects.contains(std::string()),
                objects.set(std::string(), objects.get(std::string())), void()) {};

constexpr bool kHasLaunches =
    compiles<c10::SafePyObject&, const at::impl::ThreadLocalPythonObjects&>(carries_objects);

template <bool kFound, typename Objects = at::impl::ThreadLocalPythonObjects,
          typename Object = c10::SafePyObject>
void add_propagation(ObserverHooks& hooks) {
  if constexpr (kFound) {
    using State = CarrierState<Objects, Object>;
    shared->propagated.store(State::found);
    hooks.set_propagated = State::set;
  }
}

template <bool kFound, typename Objects = at::impl::ThreadLocalPythonObjects,
          typename Object = c10::SafePyObject>
void forget_carrier(void*& carrier) {
  if constexpr (kFound) CarrierState<Objects, Object>::forget(carrier);
}

// Which profiler run a thread works for, as a disabled thread-local callback whose handle carries
// the run's id. It costs operators nothing, and PyTorch carries it to whatever works for the
// thread. PyTorch counts its own handles from 1.
constexpr at::CallbackHandle kMarker = at::CallbackHandle{1} << 62;

inline constexpr auto is_marker = [](const auto& entry) { return (entry.handle_ & kMarker) != 0; };

std::unique_ptr<at::ObserverContext> marker_is_never_called(const at::RecordFunction&) {
  return nullptr;
}

// The calling thread works for `profiler` from here on, 0 for none. Other thread-local callbacks
// stay as they are.
void mark_thread(uint32_t profiler) {
  change_local_callbacks([profiler](auto& entries) {
    remove_from(entries, is_marker);
    if (profiler == 0) return;
    entries.emplace_back(at::RecordFunctionCallback(marker_is_never_called), kMarker | profiler);
    entries.back().enabled_ = false;
  });
}

// The run that the thread was marked with, here or where PyTorch took the mark from; 0 for none.
uint32_t marked_profiler() {
  const auto& entries = at::get_record_function_tls_().sorted_tls_callbacks_;
  // Usually the last one.
  const auto found = std::find_if(entries.rbegin(), entries.rend(), is_marker);
  return found != entries.rend() ? static_cast<uint32_t>(found->handle_) : 0;
}

}  // namespace
}  // namespace recfn
