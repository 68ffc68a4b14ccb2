// The tracer of calls, as Python starts and stops it.
#include <pthread.h>

#include <new>
#include <string>
#include <utility>

#include "calls/tracer.hpp"
#include "core/registry.hpp"
#include "cpython/python.hpp"
#include "python/python_stack.hpp"

namespace recfn {
namespace {

std::string current_call_site() {
  std::string site;
  had_memory_for([&site] { site = call_site(nullptr); });
  return site;
}

// What Python's ProgramTexts say of which calls are shown. False with the error set.
bool read_limits(PyObject* texts) {
  const Reference c_calls(PyObject_GetAttrString(texts, "c_calls"));
  const Reference max_depth(PyObject_GetAttrString(texts, "max_depth"));
  const Reference call_sites(PyObject_GetAttrString(texts, "call_sites"));
  if (!c_calls || !max_depth || !call_sites) return false;
  const size_t limit = max_depth.get() == Py_None ? SIZE_MAX : PyLong_AsSize_t(max_depth.get());
  if (PyErr_Occurred()) return false;
  tracer->c_calls = PyObject_IsTrue(c_calls.get()) != 0;
  tracer->max_depth = limit;
  tracer->call_sites = PyObject_IsTrue(call_sites.get()) != 0;
  call_site_now = tracer->call_sites ? current_call_site : nullptr;
  return true;
}

void note_begin() {
  tracer->began_at = read_ticks(tracer->globals->use_cycle_counter);
  // It stands first.
  tracer->newest_thread =
      PyThreadState_GetID(PyInterpreterState_ThreadHead(PyInterpreterState_Get()));
  tracer->with_other_profile_functions.clear();
}

PyObject* trace_calls(PyObject*, PyObject* args) {
  PyObject *texts, *is_own_thread;
  if (!PyArg_ParseTuple(args, "OO:trace_calls", &texts, &is_own_thread)) return nullptr;
  bool read = false;
  if (!had_memory_for([&] { read = tracer->names.read(texts) && read_limits(texts); })) {
    PyErr_NoMemory();
  }
  if (!read) return nullptr;
  const Reference earlier(std::exchange(tracer->is_own_thread, Py_NewRef(is_own_thread)));
  if (!tracer->is_on()) note_begin();
  tracer->turn(tracer->tracing + !tracer->is_on(), tracer->forked);
  Py_RETURN_NONE;
}

PyObject* record_blocked(PyObject*, PyObject* native_ids) {
  return guarded([native_ids] {
    return record_blocked_threads(native_ids) < 0 ? nullptr : Py_NewRef(Py_None);
  });
}

PyObject* untrace_calls(PyObject*, PyObject*) {
  if (!tracer->is_on()) Py_RETURN_NONE;
  call_site_now = nullptr;
  tracer->turn(tracer->tracing + 1, tracer->forked);
  end_all_calls();
  tracer->names.forget();
  Py_RETURN_NONE;
}

PyObject* go_on_after_fork(PyObject*, PyObject*) {
  thread_calls().forget_parents_threads();
  tracer->turn(tracer->tracing, false);
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"trace_calls", trace_calls, METH_VARARGS,
     "trace_calls(texts, is_own_thread): takes what the profile function or the callbacks are told "
     "from now on; while it traces,\n"
     "by other names and limits. A thread of which is_own_thread() says None is asked about again "
     "at its next call.\n"
     "In a child that C code has forked, its first call there makes go_on_after_fork() be called."},
    {"record_blocked_threads", record_blocked, METH_O,
     "record_blocked_threads(native ids by ident): begins, for these threads, the calls that "
     "were open when tracing began, where nothing was told of them since. Once a tracing, before "
     "its last drain."},
    {"untrace_calls", untrace_calls, METH_NOARGS,
     "untrace_calls(): ends the calls that are open, and traces no thread any more."},
    {"go_on_after_fork", go_on_after_fork, METH_NOARGS,
     "go_on_after_fork(): in a child, where calls can be recorded again."},
    {nullptr, nullptr, 0, nullptr}};

void after_fork_in_child() {
  thread_calls().after_fork_in_child();
  if (tracer->globals != nullptr) tracer->turn(tracer->tracing, true);
}

}  // namespace

int add_call_tracer(PyObject* module) {
  static const int at_fork = pthread_atfork(nullptr, nullptr, after_fork_in_child);
  if (at_fork != 0) {
    PyErr_NoMemory();
    return -1;
  }
  if (tracer->globals == nullptr) new (tracer) Tracer;
  tracer->globals = &globals();
  return PyModule_AddFunctions(module, functions);
}

}  // namespace recfn
