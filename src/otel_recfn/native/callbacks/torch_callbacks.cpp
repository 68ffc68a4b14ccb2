// Callbacks in Python on PyTorch's own operators: a Python extension that is compiled at first use
// against the torch that is installed (pytorch/observer_build.py), loaded once and never unloaded.
//
// Each callback is registered with PyTorch as a pair of its own, with its scopes, its sampling and
// its needs. So PyTorch decides in C++, without the GIL, whether it runs; only a callback that runs
// takes the GIL, once for its start and once for its end. Callbacks of a thread stand in the
// thread's RecordFunctionTLS, which PyTorch hands on to autograd workers, torch.jit.fork and
// at::launch.
#include "cpython/python.hpp"

// Python.h comes first.
#include <pthread.h>

#include "callbacks/python_callbacks.hpp"
#include "callbacks/torch_function.hpp"
#include "pytorch/callback_lists.hpp"

namespace recfn {
namespace {

std::unordered_set<at::RecordScope> scope_set(unsigned mask) {
  std::unordered_set<at::RecordScope> scopes;
  for (unsigned scope = 0; scope < static_cast<unsigned>(at::RecordScope::NUM_SCOPES); ++scope) {
    if ((mask >> scope & 1) != 0) scopes.insert(static_cast<at::RecordScope>(scope));
  }
  return scopes;
}

// Python's errors instead of C++ exceptions.
template <typename Work>
PyObject* or_python_error(Work work) {
  try {
    return work();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
}

// The list is changed with the GIL held, and Python forks with it held, so that the two exclude
// each other.
void before_fork() { callback_list_changes().let_operators_pass(); }

// `schema`: from text; `thread_id`: from PyTorch's; `report`: of errors.
PyObject* attach(PyObject*, PyObject* args, PyObject* keywords) {
  static const char* names[] = {"scopes",     "operator_name", "schema", "inputs_error",
                                "over_error", "thread_id",     "report", nullptr};
  RuntimeTypes types;
  PyObject* reporter;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "$O!OOOOOO:attach", const_cast<char**>(names),
                                   &PyTuple_Type, &types.scopes, &types.operator_name,
                                   &types.schema, &types.inputs_error, &types.over_error,
                                   &types.thread_id, &reporter)) {
    return nullptr;
  }
  static const int at_fork = pthread_atfork(before_fork, nullptr, nullptr);
  if (at_fork != 0) return PyErr_NoMemory();
  // All of them live as long as the process.
  for (PyObject* given : {types.scopes, types.operator_name, types.schema, types.inputs_error,
                          types.over_error, types.thread_id, reporter}) {
    Py_INCREF(given);
  }
  runtime_types() = types;
  report_error = reporter;
  Py_RETURN_NONE;
}

PyObject* add(PyObject*, PyObject* args, PyObject* keywords) {
  static const char* names[] = {"handle",        "is_global", "start",         "end",
                                "should_run",    "scopes",    "sampling_prob", "needs_inputs",
                                "needs_outputs", "needs_ids", nullptr};
  auto callback = std::make_shared<PythonCallback>();
  PyObject *start, *end, *should_run;
  int global, inputs, outputs, ids;
  unsigned scopes;
  double sampling_prob;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "K$pOOOIdppp:add", const_cast<char**>(names),
                                   &callback->handle, &global, &start, &end, &should_run, &scopes,
                                   &sampling_prob, &inputs, &outputs, &ids)) {
    return nullptr;
  }
  callback->global = global != 0;
  callback->start = Reference::unless_none(start);
  callback->end = Reference::unless_none(end);
  callback->should_run = Reference::unless_none(should_run);
  if (!slots().put(callback)) Py_RETURN_FALSE;
  callback_list_changes().note();
  return or_python_error([&] {
    auto pair = at::RecordFunctionCallback(kStarts[callback->slot], run_end);
    pair.samplingProb(sampling_prob).scopes(scope_set(scopes));
    pair.needsInputs(inputs != 0).needsOutputs(outputs != 0).needsIds(ids != 0);
    callback->pair.emplace(pair);
    callback->torch_handle = callback->global ? at::addGlobalCallback(pair) : new_local_handle();
    Py_RETURN_TRUE;
  });
}

PyObject* remove(PyObject*, PyObject* handle) {
  const auto callback = slots().find(PyLong_AsUnsignedLongLong(handle));
  if (callback == nullptr) Py_RETURN_NONE;
  callback_list_changes().note();
  return or_python_error([&callback] {
    if (callback->global) at::removeCallback(callback->torch_handle);
    slots().release(callback->slot);
    Py_RETURN_NONE;
  });
}

// A callback is removed that threads may still have in their lists: it is called no more, and keeps
// its slot.
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
  return or_python_error([&] {
    (enabled != 0 ? at::reenableCallback : at::disableCallback)(callback->torch_handle);
    Py_RETURN_NONE;
  });
}

// (handles of the enabled callbacks of this thread)
PyObject* set_thread(PyObject*, PyObject* args) {
  PyObject* handles;
  if (!PyArg_ParseTuple(args, "O!", &PyTuple_Type, &handles)) return nullptr;
  return or_python_error([&] {
    std::vector<std::shared_ptr<PythonCallback>> callbacks;
    for (Py_ssize_t position = 0; position < PyTuple_GET_SIZE(handles); ++position) {
      auto callback = slots().find(PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(handles, position)));
      if (callback != nullptr) callbacks.push_back(std::move(callback));
    }
    set_thread_callbacks(callbacks);
    Py_RETURN_NONE;
  });
}

PyObject* is_enabled(PyObject*, PyObject*) {
  return PyBool_FromLong(at::isRecordFunctionEnabled());
}

PyObject* seed(PyObject*, PyObject* value) {
  const unsigned long number = PyLong_AsUnsignedLongMask(value);
  return or_python_error([number] {
    at::set_record_function_seed_for_testing(static_cast<uint32_t>(number));
    Py_RETURN_NONE;
  });
}

PyObject* is_inside(PyObject*, PyObject*) { return PyBool_FromLong(inside_callback); }

PyObject* set_inside(PyObject*, PyObject* value) {
  return PyBool_FromLong(std::exchange(inside_callback, value == Py_True));
}

// Called before the interpreter finalizes. Operators go on, in PyTorch's own threads for example,
// but reach Python no more.
PyObject* close(PyObject*, PyObject*) {
  return or_python_error([] {
    slots().each([](const PythonCallback& callback) {
      if (callback.global) at::disableCallback(callback.torch_handle);
    });
    without_gil([] { door.close(); });
    Py_RETURN_NONE;
  });
}

PyObject* forked(PyObject*, PyObject*) {
  door.forked();
  Py_RETURN_NONE;
}

constexpr Feature kFeatures[] = {
    {"own_tensors", kHasOwnTensors},
};

// Features of this PyTorch, named as in pytorch/details.py and separated by spaces; missing ones
// have a leading '-'.
PyObject* features(PyObject*, PyObject*) { return to_text(feature_list(kFeatures)); }

PyMethodDef methods[] = {{"attach", with_keywords(attach), METH_VARARGS | METH_KEYWORDS, nullptr},
                         {"add", with_keywords(add), METH_VARARGS | METH_KEYWORDS, nullptr},
                         {"remove", remove, METH_O, nullptr},
                         {"fail", fail, METH_O, nullptr},
                         {"switch_global", switch_global, METH_VARARGS, nullptr},
                         {"set_thread", set_thread, METH_VARARGS, nullptr},
                         {"is_enabled", is_enabled, METH_NOARGS, nullptr},
                         {"seed", seed, METH_O, nullptr},
                         {"is_inside", is_inside, METH_NOARGS, nullptr},
                         {"set_inside", set_inside, METH_O, nullptr},
                         {"close", close, METH_NOARGS, nullptr},
                         {"forked", forked, METH_NOARGS, nullptr},
                         {"features", features, METH_NOARGS, nullptr},
                         {}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "otel_recfn._torch_callbacks", nullptr, -1,
                          methods};

}  // namespace
}  // namespace recfn

PyMODINIT_FUNC PyInit__torch_callbacks() {
  return recfn::function_type() != nullptr ? PyModule_Create(&recfn::definition) : nullptr;
}
