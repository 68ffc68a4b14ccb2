// The one look at Python from an operator's thread: what is current there, by a reader written in
// Python.
#include "core/registry.hpp"
#include "cpython/python.hpp"
#include "python/arguments.hpp"
#include "python/task_contexts.hpp"
#include "python/task_entries.hpp"

namespace recfn {

namespace {

PyObject* context_reader =
    nullptr;  // () -> (trace high, trace low, span id, flags, enclosing, root, span) | None
PyObject* thread_noter =
    nullptr;  // (thread number) -> whether Python started the thread that this is called in
PyObject* is_the_programs =
    nullptr;  // (exception) -> whether a signal handler of the program's raised it

uint64_t context_version(const ThreadBuffer& buffer) {
  if (const Launch* launch = launch_of_another(&buffer))
    return version_with_sampling(globals(), launch_version(*launch));
  const PyThreadState* state = PyGILState_GetThisThreadState();
  return state != nullptr ? context_version_of(globals(), state) : 0;
}

// A call may let another thread replace what is called: it is held meanwhile.
void note_thread(ThreadBuffer& buffer) {
  buffer.name_noted = true;
  const Reference noter(Py_NewRef(thread_noter)),
      number(PyLong_FromUnsignedLongLong(buffer.number));
  PyObject* const arguments[] = {number.get()};
  const Reference result(number ? call_unseen(noter.get(), arguments, 1) : nullptr);
  buffer.of_python = result.get() == Py_True;
}

// A failure of the reader's own ends here. What a signal handler of the program's raised meanwhile
// goes on to the program.
void hand_on_error() {
  Reference raised(take_raised());
  if (!raised) return;
  if (PyErr_GivenExceptionMatches(raised.get(), PyExc_Exception)) {
    PyObject* const error = raised.get();
    const Reference answer(call_unseen(is_the_programs, &error, 1));
    if (!answer) return raise_in_main_thread(take_raised());
    if (answer.get() != Py_True) return;
  }
  raise_in_main_thread(raised.release());
}

// A new reference; null where there is nothing to read.
PyObject* call_context_reader() {
  if (context_reader == nullptr || PyErr_Occurred() != nullptr) return nullptr;
  const Reference reader(Py_NewRef(context_reader));
  return call_unseen(reader.get(), nullptr, 0);
}

void view_current(ThreadBuffer& buffer, TaskView& view) {
  if (!buffer.name_noted && thread_noter != nullptr) note_thread(buffer);
  const Reference reading(call_context_reader());
  PyObject* span = nullptr;
  if (reading && reading.get() != Py_None) {
    unsigned long long words[6];
    if (PyArg_ParseTuple(reading.get(), "KKKKKKO", &words[0], &words[1], &words[2], &words[3],
                         &words[4], &words[5], &span)) {
      view.current = Context{words[0], words[1], words[2], words[3], words[4], words[5]};
    }
  }
  hand_on_error();
  view_task(buffer, view, span);
}

// The one look at Python from an operator's thread, which works for no other one.
void read_context(ThreadBuffer& buffer, TaskView& view) {
  const Launch* launch = launch_of_another(&buffer);
  if (launch != nullptr && view_launch(*launch, view)) return;
  if (!python_knows_this_thread()) return;
  const WithGil python;
  view_current(buffer, view);
}

void replace(PyObject*& held, PyObject* by) {
  PyObject* old = held;
  held = by == Py_None ? nullptr : Py_NewRef(by);
  Py_XDECREF(old);
}

PyObject* set_context_reader(PyObject*, PyObject* args) {
  PyObject *reader, *noter, *asked;
  if (!PyArg_ParseTuple(args, "OOO", &reader, &noter, &asked)) return nullptr;
  replace(context_reader, reader);
  replace(thread_noter, noter);
  replace(is_the_programs, asked);
  const bool wanted = context_reader != nullptr || thread_noter != nullptr;
  globals().context_version.store(wanted ? context_version : nullptr);
  globals().may_have_been_suspended.store(may_have_been_suspended);
  globals().read_context.store(wanted ? read_context : nullptr);
  turn_short_way(globals());
  Py_RETURN_NONE;
}

PyMethodDef reader_functions[] = {
    {"set_context_reader", set_context_reader, METH_VARARGS,
     "set_context_reader(reader | None, thread_noter | None, is_the_programs)"},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int add_context_reader(PyObject* module) { return PyModule_AddFunctions(module, reader_functions); }

}  // namespace recfn
