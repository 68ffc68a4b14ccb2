#include <algorithm>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "columns/column.hpp"
#include "core/registry.hpp"
#include "cpython/python.hpp"
#include "drain/drain.hpp"

namespace recfn {
namespace {

PyObject* column_dict(std::vector<GivenColumn>& columns) {
  PyObject* dict = PyDict_New();
  for (GivenColumn& given : columns) {
    if (dict == nullptr) break;
    const Made column(new_column({std::move(given.owner), given.first, given.bytes}));
    if (column.object == nullptr || PyDict_SetItemString(dict, given.name, column.object) < 0) Py_CLEAR(dict);
  }
  return dict;
}

template <typename Items, typename Make>
PyObject* to_list(const Items& items, Make make) {
  PyObject* list = PyList_New(0);
  for (const auto& item : items) {
    if (list == nullptr) break;
    const Made made(make(item));
    if (made.object == nullptr || PyList_Append(list, made.object) < 0) Py_CLEAR(list);
  }
  return list;
}

PyObject* thread_tuple(const ThreadRow& thread) {
  return Py_BuildValue("(KKKK)", static_cast<unsigned long long>(thread.number), static_cast<unsigned long long>(thread.thread_id),
                       static_cast<unsigned long long>(thread.native_id), static_cast<unsigned long long>(thread.ident));
}

PyObject* context_tuple(const Context& context) {
  return Py_BuildValue("(KKKK)", static_cast<unsigned long long>(context.trace_high),
                       static_cast<unsigned long long>(context.trace_low), static_cast<unsigned long long>(context.span_id),
                       static_cast<unsigned long long>(context.flags));
}

PyObject* text_object(const std::string& text) {
  return PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
}

// (columns, without those that are seldom filled where none of them is, columns of the announced ranges, epoch of the names, names
// that the caller doesn't have, threads, contexts, how many rows closed, by how much the wall clock jumped).
PyObject* told(const Drained& drained) {
  std::vector<GivenColumn> columns = drained.rows.give(), announced = drained.opened.give();
  const Made rows(column_dict(columns)), opened(rows.object ? column_dict(announced) : nullptr);
  const Made names(opened.object ? to_list(drained.new_names, text_object) : nullptr);
  const Made threads(names.object ? to_list(drained.threads, thread_tuple) : nullptr);
  const Made contexts(threads.object ? to_list(drained.contexts, context_tuple) : nullptr);
  if (contexts.object == nullptr) return nullptr;
  return Py_BuildValue("(OOKOOOnL)", rows.object, opened.object, static_cast<unsigned long long>(drained.epoch), names.object,
                       threads.object, contexts.object, static_cast<Py_ssize_t>(drained.closed),
                       static_cast<long long>(drained.clock_jump_ns));
}

// `known`: how many names of `epoch` the caller has.
PyObject* run_drain(PyObject*, PyObject* args) {
  int close_open, open_ranges;
  unsigned long long epoch, known;
  prepare_for_exceptions();
  if (!PyArg_ParseTuple(args, "ppKK", &close_open, &open_ranges, &epoch, &known)) return nullptr;
  Drained drained;  // nobody holds the drain's lock while Python's objects are made of it
  const bool has_run = without_gil([&] {
    const std::lock_guard lock(drain().mutex());
    drained = drain().run(close_open != 0, open_ranges != 0, epoch, known);
  });
  PyObject* const result = has_run ? guarded([&] { return told(drained); }) : nullptr;
  if (result == nullptr) drain().count_discarded(drained.closed);
  return result;
}

PyObject* count_discarded(PyObject*, PyObject* argument) {
  const size_t rows = PyLong_AsSize_t(argument);
  if (PyErr_Occurred()) return nullptr;
  drain().count_discarded(rows);
  Py_RETURN_NONE;
}

PyObject* wait(PyObject*, PyObject* args) {
  double seconds;
  prepare_for_exceptions();
  if (!PyArg_ParseTuple(args, "d", &seconds)) return nullptr;
  without_gil([seconds] { registry().waker().wait(static_cast<uint64_t>(std::max(0.0, seconds) * 1e9)); });
  Py_RETURN_NONE;
}

PyObject* wake(PyObject*, PyObject*) {
  registry().waker().wake();
  Py_RETURN_NONE;
}

PyObject* counters(PyObject*, PyObject*) {
  const NotRecorded lost = registry().not_recorded();
  return Py_BuildValue("(KKKK)", static_cast<unsigned long long>(lost.dropped),
                       static_cast<unsigned long long>(globals().remote_ends.lost()),
                       static_cast<unsigned long long>(drain().discarded()), static_cast<unsigned long long>(lost.unsampled));
}

PyMethodDef drain_functions[] = {
    {"drain", run_drain, METH_VARARGS, "drain(close_open, open_ranges, epoch, known) -> what closed since the last drain."},
    {"count_discarded", count_discarded, METH_O, "count_discarded(rows): so many that a drain gave were lost on their way."},
    {"wait", wait, METH_VARARGS, "wait(seconds): until wake(), or a thread has filled a quarter of its buffer."},
    {"wake", wake, METH_NOARGS, "wake(): end a wait."},
    {"counters", counters, METH_NOARGS, "counters() -> (dropped, lost ends, lost in drain, unsampled)"},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int add_drain(PyObject* module) {
  return PyModule_AddFunctions(module, drain_functions);
}

}  // namespace recfn
