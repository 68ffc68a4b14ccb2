// Tells of each call of a Python function, at its begin and its end, and leaves the function as it
// is.
//
// A function has a pointer to what runs it, which CPython lets be replaced
// (PyFunction_SetVectorcall). Code, attributes and identity stay the same, no frame is added, and
// whoever compiles or traces the function sees what it would see.
#include "cpython/python.hpp"
#include "python/arguments.hpp"

namespace recfn {
namespace {

constexpr Py_ssize_t kMost = 2;

struct Watch {
  PyObject* functions[kMost];
  vectorcallfunc run[kMost];  // what ran them before
  PyObject* enter;            // null while nobody watches
  PyObject* leave;
};

Watch watch{};

// Sets the thread's observer of frames and returns the one that was set before; null while nobody
// knows of any.
PyObject* set_observer = nullptr;

// The first argument of the call of the first function that was told just now, until the second is
// called with it, too.
thread_local PyObject* on_its_way = nullptr;

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
  for (Py_ssize_t i = 0; i < called_with.count + named; ++i)
    PyTuple_SET_ITEM(arguments, i, Py_NewRef(called_with.args[i]));
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
  const Reference told(call_unseen(leave, args, 2));
  if (told) {
    if (raised != nullptr) raise_again(raised);
    return result;
  }
  Py_XDECREF(raised);
  Py_XDECREF(result);
  return nullptr;
}

PyObject* watched_call(PyObject* function, PyObject* const* args, size_t flagged, PyObject* names) {
  const bool is_first = function == watch.functions[0];
  const vectorcallfunc run = watch.run[is_first ? 0 : 1];
  PyObject* const subject = PyVectorcall_NARGS(flagged) > 0 ? args[0] : nullptr;
  const bool is_told = !is_first && on_its_way == subject;
  on_its_way = nullptr;
  if (watch.enter == nullptr || subject == nullptr || is_told)
    return run(function, args, flagged, names);
  const Reference leave(Py_NewRef(watch.leave));
  const Reference token([&] {
    const Entering entering(args, flagged, names);
    return call_unseen(watch.enter, &subject, 1);
  }());
  if (!token) return nullptr;
  if (is_first && watch.functions[1] != nullptr) on_its_way = subject;
  PyObject* result = run(function, args, flagged, names);
  return token.get() == Py_None ? result : left(leave.get(), token.get(), result);
}

PyObject* unwatch_calls(PyObject*, PyObject*) {
  if (watch.enter == nullptr) Py_RETURN_NONE;
  for (Py_ssize_t i = 0; i < kMost && watch.functions[i] != nullptr; ++i) {
    if (run_of(watch.functions[i]) == watched_call) run_by(watch.functions[i], watch.run[i]);
  }
  // The functions are kept: whoever replaced the pointer meanwhile may still call what it was.
  Py_CLEAR(watch.enter);
  Py_CLEAR(watch.leave);
  Py_RETURN_NONE;
}

PyObject* watch_calls(PyObject*, PyObject* args) {
  PyObject *functions, *enter, *leave;
  if (!PyArg_ParseTuple(args, "O!OO", &PyTuple_Type, &functions, &enter, &leave)) return nullptr;
  const Py_ssize_t count = PyTuple_GET_SIZE(functions);
  bool all_functions = count >= 1 && count <= kMost;
  for (Py_ssize_t i = 0; i < count; ++i)
    all_functions = all_functions && PyFunction_Check(PyTuple_GET_ITEM(functions, i));
  if (!all_functions)
    return PyErr_Format(PyExc_TypeError, "watch_calls takes one or two Python functions");
  if (watch.enter != nullptr)
    return PyErr_Format(PyExc_RuntimeError, "calls are watched already: unwatch_calls() first");
  for (Py_ssize_t i = 0; i < kMost; ++i) {
    PyObject* function = i < count ? Py_NewRef(PyTuple_GET_ITEM(functions, i)) : nullptr;
    Py_XSETREF(watch.functions[i], function);
    if (function == nullptr || run_of(function) == watched_call) continue;
    watch.run[i] = run_of(function);
    run_by(function, watched_call);
  }
  watch.enter = Py_NewRef(enter);
  watch.leave = Py_NewRef(leave);
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
     "hands on to the second is one."},
    {"set_frame_observer", set_frame_observer, METH_O,
     "set_frame_observer(setter | None): from now on setter(None) before Python code of ours is "
     "called from C, and after it\n"
     "setter(what that gave): no observer of frames sees our own."},
    {"call_arguments", call_arguments, METH_NOARGS,
     "call_arguments(): within enter(), the arguments of the call, the named ones last."},
    {"unwatch_calls", unwatch_calls, METH_NOARGS,
     "unwatch_calls(): end that. Calls that run are still left."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

PyObject* call_unseen(PyObject* function, PyObject* const* args, size_t count) {
  if (set_observer == nullptr) return PyObject_Vectorcall(function, args, count, nullptr);
  const Reference setter(Py_NewRef(set_observer)),
      before(PyObject_CallOneArg(setter.get(), Py_None));
  if (!before) return nullptr;
  PyObject* result = PyObject_Vectorcall(function, args, count, nullptr);
  if (before.get() == Py_None) return result;
  PyObject* raised = take_raised();
  const Reference back(PyObject_CallOneArg(setter.get(), before.get()));
  if (!back) PyErr_Clear();
  if (raised != nullptr) raise_again(raised);
  return result;
}

int add_watched_calls(PyObject* module) { return PyModule_AddFunctions(module, watch_functions); }

}  // namespace recfn
