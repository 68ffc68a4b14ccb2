#include "python/call_later.hpp"

#include <pthread.h>

#include <cstdlib>
#include <ctime>

namespace recfn {
namespace {

struct Later {
  PyObject* function;
  timespec pause;
};

bool python_ends() {
#if PY_VERSION_HEX >= 0x030D0000
  const bool finalizing = Py_IsFinalizing() != 0;
#else
  const bool finalizing = _Py_IsFinalizing() != 0;
#endif
  return finalizing || Py_IsInitialized() == 0;
}

void call(PyObject* function) {
  PyObject* result = PyObject_CallNoArgs(function);
  if (result == nullptr) PyErr_WriteUnraisable(function);
  Py_XDECREF(result);
  Py_DECREF(function);
}

// Nothing here has a destructor: where the process ends meanwhile, Python ends this thread where it asks for the GIL.
extern "C" void* run_later(void* given) {
  const Later later = *static_cast<Later*>(given);
  std::free(given);
  nanosleep(&later.pause, nullptr);
  if (python_ends()) return nullptr;
  const PyGILState_STATE state = PyGILState_Ensure();
  call(later.function);
  PyGILState_Release(state);
  return nullptr;
}

bool start(Later* later) {
  pthread_t thread;
  if (pthread_create(&thread, nullptr, run_later, later) != 0) return false;
  pthread_detach(thread);
  return true;
}

PyObject* call_later(PyObject*, PyObject* args) {
  double seconds;
  PyObject* function;
  if (!PyArg_ParseTuple(args, "dO", &seconds, &function)) return nullptr;
  auto* later = static_cast<Later*>(std::malloc(sizeof(Later)));
  if (later == nullptr) return PyErr_NoMemory();
  later->function = Py_NewRef(function);
  later->pause.tv_sec = static_cast<time_t>(seconds);
  later->pause.tv_nsec = static_cast<long>((seconds - static_cast<double>(later->pause.tv_sec)) * 1e9);
  if (start(later)) Py_RETURN_NONE;
  Py_DECREF(function);
  std::free(later);
  PyErr_SetString(PyExc_RuntimeError, "no more threads can be had");
  return nullptr;
}

PyMethodDef later_functions[] = {
    {"call_later", call_later, METH_VARARGS, "call_later(seconds, function): call it in another thread, so many seconds from now."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int add_call_later(PyObject* module) { return PyModule_AddFunctions(module, later_functions); }

}  // namespace recfn
