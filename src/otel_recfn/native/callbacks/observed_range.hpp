// A range of PyTorch's that a callback in Python observes, from its start to its end.
#pragma once
#include "callbacks/callback_errors.hpp"
#include "callbacks/callback_slots.hpp"
#include "callbacks/thread_callbacks.hpp"
#include "callbacks/torch_function_type.hpp"

namespace recfn {
namespace {

// Whether this thread is inside a callback, of this library's or of our Python ranges': what it does there reaches no callbacks.
thread_local bool inside_callback = false;

class InsideCallback {
 public:
  InsideCallback() : before_(std::exchange(inside_callback, true)) {}
  ~InsideCallback() { inside_callback = before_; }
  InsideCallback(const InsideCallback&) = delete;
  InsideCallback& operator=(const InsideCallback&) = delete;

 private:
  const bool before_;
};

// What a range takes from its start to its end. It holds the callback itself, so that the end belongs to the start that ran even if
// the slot has another callback by then.
struct ObservedRange : at::ObserverContext {
  std::shared_ptr<PythonCallback> callback;
  Reference function, context;

  // Almost always empty by now, because the end drops everything while it has the GIL. Once the interpreter is gone, what is left
  // is freed with the process.
  ~ObservedRange() override {
    if (callback == nullptr) return;
    const PythonEntry python;
    if (python) {
      drop();
    } else {
      new std::shared_ptr<PythonCallback>(std::move(callback));
      function.release(), context.release();
    }
  }

  void drop() {
    function = Reference();
    context = Reference();
    callback = nullptr;
  }
};

bool is_wanted(PythonCallback& callback, const at::RecordFunction& function) {
  if (!callback.should_run) return true;
  const Reference member(scope_member(function.scope()));
  const Reference answer(PyObject_CallOneArg(callback.should_run.get(), member.get()));
  const int wanted = answer ? PyObject_IsTrue(answer.get()) : -1;
  if (wanted < 0) hand_on_error(callback, function);
  return wanted > 0;
}

bool call_start(ObservedRange& range, const at::RecordFunction& function) {
  range.function = new_function();
  if (range.function && range.callback->start) {
    const Shown shown(range.function, function, true);
    range.context = Reference(PyObject_CallOneArg(range.callback->start.get(), range.function.get()));
  }
  if (PyErr_Occurred() == nullptr) return true;
  hand_on_error(*range.callback, function);
  return false;
}

void call_end(ObservedRange& range, const at::RecordFunction& function) {
  if (!range.callback->end || range.callback->failed) return;
  const Shown shown(range.function, function, false);
  PyObject* arguments[] = {range.function.get(), range.context ? range.context.get() : Py_None};
  const Reference result(PyObject_Vectorcall(range.callback->end.get(), arguments, 2, nullptr));
  if (!result) hand_on_error(*range.callback, function);
}

}  // namespace

inline std::unique_ptr<at::ObserverContext> run_start(size_t slot, const at::RecordFunction& function) {
  if (inside_callback || !slots().is_live(slot)) return nullptr;
  const PythonEntry python;
  if (!python) return nullptr;
  const InsideCallback inside;
  auto range = std::make_unique<ObservedRange>();
  range->callback = slots().at(slot);
  const bool runs = range->callback != nullptr && range->callback->runs_in(function.scope());
  if (!runs || !is_wanted(*range->callback, function) || !call_start(*range, function)) return nullptr;
  if (!range->callback->end) return nullptr;
  return range;
}

inline void run_end(const at::RecordFunction& function, at::ObserverContext* context) {
  if (context == nullptr) return;
  const PythonEntry python;
  if (!python) return;
  const InsideCallback inside;
  auto& range = *static_cast<ObservedRange*>(context);
  call_end(range, function);
  range.drop();
}

}  // namespace recfn
