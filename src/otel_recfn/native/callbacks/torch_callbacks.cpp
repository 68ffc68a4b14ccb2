// Callbacks in Python on PyTorch's own operators: a Python extension that is compiled at first use against the torch that is
// installed (pytorch/observer_build.py), loaded once and never unloaded.
//
// Each callback is registered with PyTorch as a pair of its own, with its scopes, its sampling and its needs. So PyTorch decides
// in C++, without the GIL, whether it runs; only a callback that runs takes the GIL, once for its start and once for its end.
// Callbacks of a thread stand in the thread's RecordFunctionTLS, which PyTorch hands on to autograd workers, torch.jit.fork and
// at::launch.
#include "callbacks/torch_function_type.hpp"
// It includes Python.h, which comes first.
#include <pthread.h>

#include <algorithm>

#include "pytorch/callback_list.hpp"
#include "callbacks/callback_slots.hpp"

namespace recfn {
namespace {

PyObject* report_error = nullptr;  // (handle, exception) -> whether it is the program's own and goes on to it

// Whether this thread is inside a callback, of this library's or of the runtime's: what it does there reaches no callbacks.
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

// What a range brings from its start to its end: the callback itself, so that the end that runs belongs to the start that ran,
// whatever became of the slot meanwhile.
struct ObservedRange : at::ObserverContext {
  std::shared_ptr<PythonCallback> callback;
  Reference function, context;

  // Almost always empty by now: the end took the GIL anyway. With the interpreter gone, the memory goes with the process.
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

// Stands, never enabled, in the RecordFunctionTLS of threads that switched callbacks off, so that PyTorch hands that on, too.
// PyTorch's own switch would silence other observers as well.
std::unique_ptr<at::ObserverContext> muted(const at::RecordFunction&) { return nullptr; }

bool is_muted() {
  const auto& entries = at::get_record_function_tls_().sorted_tls_callbacks_;
  return std::any_of(entries.begin(), entries.end(), [](const auto& entry) { return entry.callback_.start() == muted; });
}

int raise_again(void* error) {
  const Reference value(static_cast<PyObject*>(error));
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(value.get())), value.get());
  return -1;
}

Reference take_error() {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback != nullptr) PyException_SetTraceback(value, traceback);
  Py_XDECREF(type), Py_XDECREF(traceback);
  return Reference(value);
}

// An operator can't pass on what was raised in the program while it ran (KeyboardInterrupt, or by another signal handler): the
// main thread's next Python instruction does.
void raise_in_main_thread(Reference error) {
  if (Py_AddPendingCall(raise_again, error.get()) == 0) error.release();
}

void hand_on_error(PythonCallback& callback) {
  Reference error = take_error();
  const Reference is_the_programs(PyObject_CallFunction(report_error, "KO", callback.handle, error.get()));
  if (!is_the_programs) return raise_in_main_thread(take_error());
  if (is_the_programs.get() == Py_True) return raise_in_main_thread(std::move(error));
  slots().fail(callback);
}

bool is_wanted(PythonCallback& callback, at::RecordScope scope) {
  if (!callback.should_run) return true;
  const Reference member(scope_member(scope));
  const Reference answer(PyObject_CallOneArg(callback.should_run.get(), member.get()));
  const int wanted = answer ? PyObject_IsTrue(answer.get()) : -1;
  if (wanted < 0) hand_on_error(callback);
  return wanted > 0;
}

bool call_start(ObservedRange& range, const at::RecordFunction& function) {
  range.function = new_function();
  if (range.function && range.callback->start) {
    const Shown shown(range.function, function, true);
    range.context = Reference(PyObject_CallOneArg(range.callback->start.get(), range.function.get()));
  }
  if (PyErr_Occurred() == nullptr) return true;
  hand_on_error(*range.callback);
  return false;
}

void call_end(ObservedRange& range, const at::RecordFunction& function) {
  if (!range.callback->end || range.callback->failed) return;
  const Shown shown(range.function, function, false);
  PyObject* arguments[] = {range.function.get(), range.context ? range.context.get() : Py_None};
  const Reference result(PyObject_Vectorcall(range.callback->end.get(), arguments, 2, nullptr));
  if (!result) hand_on_error(*range.callback);
}

}  // namespace

std::unique_ptr<at::ObserverContext> run_start(size_t slot, const at::RecordFunction& function) {
  if (inside_callback || !slots().is_live(slot) || is_muted()) return nullptr;
  const PythonEntry python;
  if (!python) return nullptr;
  const InsideCallback inside;
  auto range = std::make_unique<ObservedRange>();
  range->callback = slots().at(slot);
  const bool runs = range->callback != nullptr && range->callback->runs_in(function.scope());
  if (!runs || !is_wanted(*range->callback, function.scope()) || !call_start(*range, function)) return nullptr;
  if (!range->callback->end) return nullptr;
  return range;
}

void run_end(const at::RecordFunction& function, at::ObserverContext* context) {
  if (context == nullptr) return;
  const PythonEntry python;
  if (!python) return;
  const InsideCallback inside;
  auto& range = *static_cast<ObservedRange*>(context);
  call_end(range, function);
  range.drop();
}

namespace {

std::unordered_set<at::RecordScope> scope_set(unsigned mask) {
  std::unordered_set<at::RecordScope> scopes;
  for (unsigned scope = 0; scope < static_cast<unsigned>(at::RecordScope::NUM_SCOPES); ++scope) {
    if ((mask >> scope & 1) != 0) scopes.insert(static_cast<at::RecordScope>(scope));
  }
  return scopes;
}

// PyTorch numbers what is added: a thread's callback is added to the calling thread and taken out again; set_thread puts it into
// the threads that it belongs to.
at::CallbackHandle new_local_handle(const at::RecordFunctionCallback& pair) {
  const at::RecordFunctionTLS before = at::get_record_function_tls_();
  const at::CallbackHandle handle = at::addThreadLocalCallback(pair);
  at::set_record_function_tls_(before);
  return handle;
}

bool is_ours(const at::RecordFunctionCallbacksEntry& entry) {
  const auto start = entry.callback_.start();
  return start == muted || std::find(kStarts.begin(), kStarts.end(), start) != kStarts.end();
}

// Python's errors instead of C++ exceptions.
template <typename Work>
PyObject* guarded(Work work) {
  try {
    return work();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
}

// Who changes the list holds the GIL, as does Python when it forks.
void before_fork() { callback_list_changes().let_operators_pass(); }

// (RecordScope's members, OperatorName, schema from text, InputsError, error of a range that is over, reporter of errors)
PyObject* attach(PyObject*, PyObject* args) {
  RuntimeTypes types;
  PyObject* reporter;
  if (!PyArg_ParseTuple(args, "O!OOOOO", &PyTuple_Type, &types.scopes, &types.operator_name, &types.schema, &types.inputs_error,
                        &types.over_error, &reporter)) {
    return nullptr;
  }
  static const int at_fork = pthread_atfork(before_fork, nullptr, nullptr);
  if (at_fork != 0) return PyErr_NoMemory();
  Py_INCREF(args);  // all of them live as long as the process
  runtime_types() = types;
  report_error = reporter;
  Py_RETURN_NONE;
}

PyObject* add(PyObject*, PyObject* args) {
  auto callback = std::make_shared<PythonCallback>();
  PyObject *start, *end, *should_run;
  int global, inputs, outputs, ids;
  double sampling_prob;
  if (!PyArg_ParseTuple(args, "KpOOOIdppp", &callback->handle, &global, &start, &end, &should_run, &callback->scopes,
                        &sampling_prob, &inputs, &outputs, &ids)) {
    return nullptr;
  }
  callback->global = global != 0;
  callback->start = Reference::unless_none(start);
  callback->end = Reference::unless_none(end);
  callback->should_run = Reference::unless_none(should_run);
  if (!slots().put(callback)) Py_RETURN_FALSE;
  callback_list_changes().note();
  return guarded([&] {
    auto pair = at::RecordFunctionCallback(kStarts[callback->slot], run_end);
    pair.samplingProb(sampling_prob).scopes(scope_set(callback->scopes));
    pair.needsInputs(inputs != 0).needsOutputs(outputs != 0).needsIds(ids != 0);
    callback->entry.emplace(pair, callback->global ? at::addGlobalCallback(pair) : new_local_handle(pair));
    Py_RETURN_TRUE;
  });
}

PyObject* remove(PyObject*, PyObject* handle) {
  const auto callback = slots().find(PyLong_AsUnsignedLongLong(handle));
  if (callback == nullptr) Py_RETURN_NONE;
  callback_list_changes().note();
  return guarded([&callback] {
    if (callback->global) at::removeCallback(callback->entry->handle_);
    slots().release(callback->slot);
    Py_RETURN_NONE;
  });
}

// It raised elsewhere; threads may still have it in their lists.
PyObject* fail(PyObject*, PyObject* handle) {
  const auto callback = slots().find(PyLong_AsUnsignedLongLong(handle));
  if (callback != nullptr) slots().fail(*callback);
  Py_RETURN_NONE;
}

PyObject* switch_global(PyObject*, PyObject* args) {
  unsigned long long handle;
  int enabled;
  if (!PyArg_ParseTuple(args, "Kp", &handle, &enabled)) return nullptr;
  const auto callback = slots().find(handle);
  if (callback == nullptr) Py_RETURN_NONE;
  callback_list_changes().note();
  return guarded([&] {
    (enabled != 0 ? at::reenableCallback : at::disableCallback)(callback->entry->handle_);
    Py_RETURN_NONE;
  });
}

// (handles of the enabled callbacks of this thread, whether the thread runs callbacks at all)
PyObject* set_thread(PyObject*, PyObject* args) {
  PyObject* handles;
  int enabled;
  if (!PyArg_ParseTuple(args, "O!p", &PyTuple_Type, &handles, &enabled)) return nullptr;
  return guarded([&] {
    static const at::CallbackHandle muted_handle = new_local_handle(at::RecordFunctionCallback(muted));
    at::RecordFunctionTLS state = at::get_record_function_tls_();
    auto& entries = state.sorted_tls_callbacks_;
    entries.erase(std::remove_if(entries.begin(), entries.end(), is_ours), entries.end());
    for (Py_ssize_t position = 0; position < PyTuple_GET_SIZE(handles); ++position) {
      const auto callback = slots().find(PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(handles, position)));
      if (callback != nullptr) entries.push_back(*callback->entry);
    }
    if (enabled == 0) {
      entries.emplace_back(at::RecordFunctionCallback(muted), muted_handle);
      entries.back().enabled_ = false;
    }
    std::sort(entries.begin(), entries.end(), [](const auto& one, const auto& other) { return one.handle_ < other.handle_; });
    at::set_record_function_tls_(state);
    Py_RETURN_NONE;
  });
}

PyObject* seed(PyObject*, PyObject* value) {
  const unsigned long number = PyLong_AsUnsignedLongMask(value);
  return guarded([number] {
    at::set_record_function_seed_for_testing(static_cast<uint32_t>(number));
    Py_RETURN_NONE;
  });
}

PyObject* is_inside(PyObject*, PyObject*) { return PyBool_FromLong(inside_callback); }

PyObject* set_inside(PyObject*, PyObject* value) { return PyBool_FromLong(std::exchange(inside_callback, value == Py_True)); }

// Before the interpreter finalizes: operators go on, for example in PyTorch's own threads, and reach Python no more.
PyObject* close(PyObject*, PyObject*) {
  return guarded([] {
    slots().each([](const PythonCallback& callback) { at::disableCallback(callback.entry->handle_); });
    const int own = inside_callback ? 1 : 0;
    Py_BEGIN_ALLOW_THREADS door().close(own);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
  });
}

PyObject* forked(PyObject*, PyObject*) {
  door().only(inside_callback ? 1 : 0);
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {{"attach", attach, METH_VARARGS, nullptr},
                         {"add", add, METH_VARARGS, nullptr},
                         {"remove", remove, METH_O, nullptr},
                         {"fail", fail, METH_O, nullptr},
                         {"switch_global", switch_global, METH_VARARGS, nullptr},
                         {"set_thread", set_thread, METH_VARARGS, nullptr},
                         {"seed", seed, METH_O, nullptr},
                         {"is_inside", is_inside, METH_NOARGS, nullptr},
                         {"set_inside", set_inside, METH_O, nullptr},
                         {"close", close, METH_NOARGS, nullptr},
                         {"forked", forked, METH_NOARGS, nullptr},
                         {}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "otel_recfn._torch_callbacks", nullptr, -1, methods};

}  // namespace
}  // namespace recfn

PyMODINIT_FUNC PyInit__torch_callbacks() {
  return recfn::function_type() != nullptr ? PyModule_Create(&recfn::definition) : nullptr;
}
