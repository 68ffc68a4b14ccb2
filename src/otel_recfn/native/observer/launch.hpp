// Has PyTorch carry what a thread is in to the threads that work for it: autograd's workers, torch.jit.fork, collectives.
//
// PyTorch's thread-local state holds objects by name, and is copied, pointers and no more, where work is launched. So while nobody
// else has the object, nothing was launched since it was set, and it may be changed in place.
#pragma once
#if __has_include(<ATen/ThreadLocalPythonObjects.h>)
#include <ATen/ThreadLocalPythonObjects.h>
#endif

#include <memory>
#include <string>
#include <utility>

#include "observer/observer_thread.hpp"
#include "pytorch/features.hpp"

namespace recfn::stand_ins {

namespace c10_names {
struct SafePyObject {};
}  // namespace c10_names

namespace impl_names {
struct ThreadLocalPythonObjects {};
}  // namespace impl_names

}  // namespace recfn::stand_ins

namespace c10 {
using namespace recfn::stand_ins::c10_names;
}

namespace at::impl {
using namespace recfn::stand_ins::impl_names;
}

namespace recfn {
namespace {

// PyTorch takes it for a Python object, of which there is none.
template <typename Object>
struct CarriedLaunch : Object {
  explicit CarriedLaunch(const Launch& launch) : Object(nullptr, nullptr), launch(launch) {}
  ~CarriedLaunch() { shared->let_go.load()(launch.entry); }
  Launch launch;
};

template <typename Objects, typename Object>
struct LaunchState {
  using Carried = CarriedLaunch<Object>;

  static const std::string& key() {
    static const auto* instance = new std::string("recfn.launch");
    return *instance;
  }

  static const Launch* found() {
    return Objects::contains(key()) ? &static_cast<const Carried*>(Objects::get(key()).get())->launch : nullptr;
  }

  // `carried` is what the thread set last: its state has it, too, if no copy of the state was installed since.
  static void* set(void*& carried, const Launch& launch) try {
    auto* last = static_cast<std::shared_ptr<Carried>*>(carried);
    if (last != nullptr && last->use_count() == 2 && (*last)->launch.thread == launch.thread) {
      return std::exchange((*last)->launch, launch).entry;
    }
    auto made = std::make_unique<std::shared_ptr<Carried>>(std::make_shared<Carried>(Launch{}));
    Objects::set(key(), *made);
    (*made)->launch = launch;
    forget(carried);
    carried = made.release();
    return nullptr;
  } catch (...) {  // no memory: what is launched lies in what was handed on before
    return launch.entry;
  }

  static void forget(void*& carried) { delete static_cast<std::shared_ptr<Carried>*>(std::exchange(carried, nullptr)); }
};

inline constexpr auto carries_objects = [](auto& object, const auto& objects) -> decltype(
    std::decay_t<decltype(object)>(nullptr, nullptr), objects.contains(std::string()),
    objects.set(std::string(), objects.get(std::string())), void()) {};

constexpr bool kHasLaunches = compiles<c10::SafePyObject&, const at::impl::ThreadLocalPythonObjects&>(carries_objects);

template <bool kFound, typename Objects = at::impl::ThreadLocalPythonObjects, typename Object = c10::SafePyObject>
void watch_launches() {
  if constexpr (kFound) {
    using State = LaunchState<Objects, Object>;
    shared->launch.store(State::found);
    shared->hand_on.store(State::set);
  }
}

template <bool kFound, typename Objects = at::impl::ThreadLocalPythonObjects, typename Object = c10::SafePyObject>
void forget_launch(void*& carried) {
  if constexpr (kFound) LaunchState<Objects, Object>::forget(carried);
}

}  // namespace
}  // namespace recfn
