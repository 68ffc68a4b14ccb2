// Tells of each call of a Python function, at its begin and its end, and leaves the function as it
// is.
//
// A function has a pointer to what runs it, which CPython lets be replaced
// (PyFunction_SetVectorcall). Code, attributes and identity stay the same, no frame is added, and
// whoever compiles or traces the function sees what it would see.
#include "cpython/calls_without_dynamo.hpp"
#include "cpython/python.hpp"

#include <utility>

namespace recfn {
namespace {

// A function, and who watches it.
struct Watched {
  PyObject* function;
  vectorcallfunc run;  // what ran it before
  PyObject* enter;     // null while nobody watches
  PyObject* leave;
  bool has_inner;  // to the function after it
  bool is_inner;
};

constexpr int kMaxFunctions = 4;
constexpr int kMaxPerWatch = 2;
Watched watched[kMaxFunctions]{};
int watched_count = 0;

// The first argument of the call of the first function that was told just now, until the second is
// called with it, too.
thread_local PyObject* outer_subject = nullptr;

// The arguments of the call whose `enter` runs.
struct CalledWith {
  PyObject* const* args = nullptr;
  Py_ssize_t count = 0;
  PyObject* names = nullptr;  // those of the last arguments; may be null
};
thread_local CalledWith called_with;

// Sets them while an `enter` runs, which may be within that of another call.
class Entering {
 public:
  Entering(PyObject* const* args, size_t flagged, PyObject* names) : before_(called_with) {
    called_with = {args, PyVectorcall_NARGS(flagged), names};
  }
  ~Entering() { called_with = before_; }
  Entering(const Entering&) = delete;
  Entering& operator=(const Entering&) = delete;

 private:
  const CalledWith before_;
};

PyObject* call_arguments(PyObject*, PyObject*) {
  const Py_ssize_t named = called_with.names != nullptr ? PyTuple_GET_SIZE(called_with.names) : 0;
  PyObject* arguments = PyTuple_New(called_with.count + named);
  if (arguments == nullptr) return nullptr;
  for (Py_ssize_t i = 0; i < called_with.count + named; ++i) {
    PyTuple_SET_ITEM(arguments, i, Py_NewRef(called_with.args[i]));
  }
  return arguments;
}

void run_by(PyObject* function, vectorcallfunc run) {
#if PY_VERSION_HEX >= 0x030C0000
  PyFunction_SetVectorcall(reinterpret_cast<PyFunctionObject*>(function), run);
#else
  reinterpret_cast<PyFunctionObject*>(function)->vectorcall = run;
#endif
}

vectorcallfunc run_of(PyObject* function) {
  return reinterpret_cast<PyFunctionObject*>(function)->vectorcall;
}

// What `leave` raises, a signal handler's exception, goes to the program in place of the result.
PyObject* left(PyObject* leave, PyObject* token, PyObject* result) {
  PyObject* raised = result == nullptr ? take_raised() : nullptr;
  PyObject* const args[] = {token, raised != nullptr ? raised : Py_None};
  const Reference left_result(call_without_dynamo(leave, args, 2));
  if (left_result) {
    if (raised != nullptr) raise_again(raised);
    return result;
  }
  Py_XDECREF(raised);
  Py_XDECREF(result);
  return nullptr;
}

// Module calls, of which there are most, are the first. A function that is no longer here was
// replaced in its place: whoever has its old pointer may still call it, and all Python functions
// are run by the same.
const Watched& watched_function(PyObject* function) {
  for (const Watched& one : watched) {
    if (one.function == function) return one;
  }
  return watched[0];
}

PyObject* watched_call(PyObject* function, PyObject* const* args, size_t flagged, PyObject* names) {
  const Watched& watch = watched_function(function);
  const vectorcallfunc run = watch.run;
  PyObject* const subject = PyVectorcall_NARGS(flagged) > 0 ? args[0] : nullptr;
  const bool is_handled = watch.is_inner && outer_subject == subject;
  outer_subject = nullptr;
  const bool is_watched = watch.enter != nullptr && watch.function == function;
  if (!is_watched || subject == nullptr || is_handled) return run(function, args, flagged, names);
  const bool has_inner = watch.has_inner;
  const Reference leave(Py_NewRef(watch.leave));
  const Reference token([&] {
    const Entering entering(args, flagged, names);
    return call_without_dynamo(watch.enter, &subject, 1);
  }());
  if (!token) return nullptr;
  if (has_inner) outer_subject = subject;
  PyObject* result = run(function, args, flagged, names);
  return token.get() == Py_None ? result : left(leave.get(), token.get(), result);
}

PyObject* unwatch_calls(PyObject*, PyObject*) {
  for (Watched& watch : watched) {
    if (watch.enter == nullptr) continue;
    if (run_of(watch.function) == watched_call) run_by(watch.function, watch.run);
    // The function is kept: whoever replaced the pointer meanwhile may still call what it was.
    Py_CLEAR(watch.enter);
    Py_CLEAR(watch.leave);
  }
  watched_count = 0;
  Py_RETURN_NONE;
}

bool is_watched(PyObject* function) {
  for (const Watched& watch : watched) {
    if (watch.enter != nullptr && watch.function == function) return true;
  }
  return false;
}

PyObject* watch_calls(PyObject*, PyObject* args) {
  PyObject *functions, *enter, *leave;
  if (!PyArg_ParseTuple(args, "O!OO", &PyTuple_Type, &functions, &enter, &leave)) return nullptr;
  const int count = static_cast<int>(PyTuple_GET_SIZE(functions));
  bool all_functions = count >= 1 && count <= kMaxPerWatch;
  for (int i = 0; i < count; ++i) {
    all_functions = all_functions && PyFunction_Check(PyTuple_GET_ITEM(functions, i));
  }
  if (!all_functions) {
    return PyErr_Format(PyExc_TypeError, "watch_calls takes one or two Python functions");
  }
  for (int i = 0; i < count; ++i) {
    if (is_watched(PyTuple_GET_ITEM(functions, i))) {
      return PyErr_Format(PyExc_RuntimeError,
                          "these calls are watched already: unwatch_calls() first");
    }
  }
  if (watched_count + count > kMaxFunctions) {
    return PyErr_Format(PyExc_RuntimeError,
                        "%d functions are watched at most: unwatch_calls() first", kMaxFunctions);
  }
  for (int i = 0; i < count; ++i) {
    Watched& watch = watched[watched_count++];
    PyObject* function = PyTuple_GET_ITEM(functions, i);
    // It is still run by us where somebody has restored the pointer that was there while it was
    // watched before.
    const bool is_run_by_us = run_of(function) == watched_call;
    watch.run = is_run_by_us ? watched_function(function).run : run_of(function);
    PyObject* before = std::exchange(watch.function, Py_NewRef(function));
    watch.enter = Py_NewRef(enter);
    watch.leave = Py_NewRef(leave);
    watch.has_inner = i + 1 < count;
    watch.is_inner = i > 0;
    run_by(function, watched_call);
    Py_XDECREF(before);
  }
  Py_RETURN_NONE;
}

PyObject* set_frame_observer(PyObject*, PyObject* setter) {
  Py_XSETREF(set_observer, setter == Py_None ? nullptr : Py_NewRef(setter));
  Py_RETURN_NONE;
}

PyMethodDef watch_functions[] = {
    {"watch_calls", watch_calls, METH_VARARGS,
     "watch_calls(functions, enter, leave): enter(first argument) before each call; unless it "
     "gives None,\n"
     "leave(what it gave, exception or None) after it. A call that the first of two functions "
     "hands on to the second is one.\n"
     "May be called for several functions, the most called one first."},
    {"set_frame_observer", set_frame_observer, METH_O,
     "set_frame_observer(setter | None): from now on setter(None) before Python code of ours is "
     "called from C, and after it\n"
     "setter(what that gave): no observer of frames sees our own."},
    {"call_arguments", call_arguments, METH_NOARGS,
     "call_arguments(): within enter(), the arguments of the call, the named ones last."},
    {"unwatch_calls", unwatch_calls, METH_NOARGS,
     "unwatch_calls(): end all of that. Calls that run are still left."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int add_watched_calls(PyObject* module) { return PyModule_AddFunctions(module, watch_functions); }

}  // namespace recfn
