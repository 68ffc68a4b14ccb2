#include "python/drain_bindings.hpp"

#include <algorithm>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "columns/column.hpp"
#include "core/exceptions.hpp"
#include "cpython/gil.hpp"
#include "cpython/made.hpp"
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

// What a drain read, apart from the drain: nobody holds its lock while Python's objects are made.
struct Sealed {
  uint64_t run, epoch;
  size_t closed;
  int64_t clock_jump_ns;
  bool complete;
  std::vector<GivenColumn> columns, opened;
  std::vector<std::string> new_names;
  std::vector<ThreadRow> threads;
  std::vector<Context> contexts;
};

Sealed seal(bool close_open, bool open_ranges, uint64_t epoch, size_t known) {
  const std::lock_guard lock(drain().mutex());
  const Drained& drained = drain().run(close_open, open_ranges);
  const NamePool& names = drain().names();
  Sealed sealed{};
  for (size_t at = names.epoch() == epoch ? known : 0; at < names.size(); ++at) sealed.new_names.push_back(names.text(at));
  sealed.run = drain().runs(), sealed.epoch = names.epoch(), sealed.clock_jump_ns = drained.clock_jump_ns;
  sealed.threads = drained.threads, sealed.contexts = drained.contexts;
  sealed.opened = drained.opened.give();
  sealed.columns = drained.rows.give();
  sealed.closed = drained.closed, sealed.complete = drained.complete;
  return sealed;
}

// (columns, without those that are seldom filled where none of them is, columns of the announced ranges, epoch of the names, names
// from `known` on, threads, contexts, how many rows closed, by how much the wall clock jumped, whether that is all, number of the
// drain). `known`: how many names of `epoch` the caller has.
PyObject* run_drain(PyObject*, PyObject* args) {
  int close_open, open_ranges;
  unsigned long long epoch, known;
  prepare_for_exceptions();
  if (!PyArg_ParseTuple(args, "ppKK", &close_open, &open_ranges, &epoch, &known)) return nullptr;
  Sealed sealed;
  if (!without_gil([&] { sealed = seal(close_open != 0, open_ranges != 0, epoch, known); })) return nullptr;
  const Made rows(column_dict(sealed.columns)), opened(rows.object ? column_dict(sealed.opened) : nullptr);
  const Made names(opened.object ? to_list(sealed.new_names, text_object) : nullptr);
  const Made threads(names.object ? to_list(sealed.threads, thread_tuple) : nullptr);
  const Made contexts(threads.object ? to_list(sealed.contexts, context_tuple) : nullptr);
  if (contexts.object == nullptr) return nullptr;
  return Py_BuildValue("(OOKOOOnLOK)", rows.object, opened.object, static_cast<unsigned long long>(sealed.epoch), names.object,
                       threads.object, contexts.object, static_cast<Py_ssize_t>(sealed.closed),
                       static_cast<long long>(sealed.clock_jump_ns), sealed.complete ? Py_True : Py_False,
                       static_cast<unsigned long long>(sealed.run));
}

// No signal handler runs in here: it finds the rows either in the drain or in the list. What may fail is done first.
PyObject* taken(PyObject*, PyObject* args) {
  unsigned long long run;
  PyObject *into, *entry;
  if (!PyArg_ParseTuple(args, "KO!O", &run, &PyList_Type, &into, &entry)) return nullptr;
  if (PyList_Append(into, entry) < 0) return nullptr;
  bool mine = false;
  std::unique_lock lock(drain().mutex(), std::try_to_lock);
  without_gil_if(!lock, [&] {
    if (!lock) lock.lock();
    mine = drain().taken(run);
    lock.unlock();
  });
  const Py_ssize_t last = PyList_GET_SIZE(into) - 1;
  if (!mine && PyList_SetSlice(into, last, last + 1, nullptr) < 0) return nullptr;
  return PyBool_FromLong(mine);
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

PyObject* discard(PyObject*, PyObject*) {
  without_gil([] {
    const std::lock_guard lock(drain().mutex());
    drain().discard();
  });
  Py_RETURN_NONE;
}

PyObject* counters(PyObject*, PyObject*) {
  return Py_BuildValue("(KKKKKK)", static_cast<unsigned long long>(registry().recorded() - drain().too_late()),
                       static_cast<unsigned long long>(registry().dropped()),
                       static_cast<unsigned long long>(globals().remote_ends.lost()),
                       static_cast<unsigned long long>(drain().discarded()),
                       static_cast<unsigned long long>(registry().shortened()),
                       static_cast<unsigned long long>(registry().unsampled()));
}

PyObject* dropped_by_thread(PyObject*, PyObject*) try {
  const auto counts = registry().dropped_by_thread();
  PyObject* found = PyDict_New();
  for (const auto& [number, count] : counts) {
    if (found == nullptr) break;
    PyObject* const key = PyLong_FromUnsignedLongLong(number);
    PyObject* const value = PyLong_FromUnsignedLongLong(count);
    if (key == nullptr || value == nullptr || PyDict_SetItem(found, key, value) != 0) Py_CLEAR(found);
    Py_XDECREF(key), Py_XDECREF(value);
  }
  return found;
} catch (const std::bad_alloc&) {
  return PyErr_NoMemory();
}

PyMethodDef drain_functions[] = {
    {"drain", run_drain, METH_VARARGS, "drain(close_open, open_ranges, epoch, known) -> what closed since the last drain."},
    {"taken", taken, METH_VARARGS,
     "taken(drain, into, entry) -> whether the rows of that drain are the caller's, and the entry in the list."},
    {"wait", wait, METH_VARARGS, "wait(seconds): until wake(), or a thread has filled a quarter of its buffer."},
    {"wake", wake, METH_NOARGS, "wake(): end a wait."},
    {"discard", discard, METH_NOARGS, "discard(): give up, and count, what was recorded and not taken."},
    {"counters", counters, METH_NOARGS, "counters() -> (recorded, dropped, lost ends, lost in drain, shortened, unsampled)"},
    {"dropped_by_thread", dropped_by_thread, METH_NOARGS, "dropped_by_thread() -> how many by number of the thread"},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int add_drain(PyObject* module) {
  return add_column_type(module) < 0 ? -1 : PyModule_AddFunctions(module, drain_functions);
}

}  // namespace recfn
