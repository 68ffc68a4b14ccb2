// The recorder's switches and its drain in Python, which recording/recorder.py describes.
#include <algorithm>
#include <mutex>
#include <pthread.h>
#include <utility>
#include <vector>

#include "columns/column.hpp"
#include "core/registry.hpp"
#include "core/thread_buffer.hpp"
#include "cpython/python.hpp"
#include "drain/drain.hpp"
#include "python/python_stack.hpp"
#include "python/task_entries.hpp"

namespace recfn {
namespace {

// Ranges of an earlier recording are nobody's parents from here on.
void begin_recording() {
  without_gil([] {
    const std::lock_guard lock(drain().mutex());
    drain().begin_recording();
    globals().generation.fetch_add(1);
  });
}

PyObject* start(PyObject*, PyObject* args) {
  unsigned int scopes, extras;
  unsigned long long buffer_bytes;
  int sampled_alone;
  if (!PyArg_ParseTuple(args, "IKIp", &scopes, &buffer_bytes, &extras, &sampled_alone))
    return nullptr;
  Globals& shared = globals();
  registry().set_buffer_bytes(buffer_bytes);
  const uint32_t before = shared.recording.load();
  if ((before & kRecordingBit) == 0) {
    begin_recording();
    forget_open_ranges();
  }
  shared.extras.store(extras);
  shared.sampled_alone.store(sampled_alone != 0 ? 1 : 0);
  shared.recording.store(scopes | kRecordingBit | ((extras & kStackExtra) != 0 ? kStackBit : 0) |
                         (before & kObservedBit));
  turn_short_way(shared);
  Py_RETURN_NONE;
}

PyObject* stop(PyObject*, PyObject*) {
  const uint32_t before = globals().recording.fetch_and(kObservedBit);
  turn_short_way(globals());
  if ((before & kRecordingBit) != 0) drain().end_recording();
  Py_RETURN_NONE;
}

PyObject* recording(PyObject*, PyObject*) {
  return PyBool_FromLong((globals().recording.load() & kRecordingBit) != 0);
}

PyObject* set_profiler_of_thread(PyObject*, PyObject* args) {
  unsigned int profiler;
  if (!PyArg_ParseTuple(args, "I", &profiler)) return nullptr;
  ThreadBuffer* buffer = profiler != 0 ? registry().current() : registry().existing();
  if (buffer != nullptr) set_profiler(*buffer, profiler);
  Py_RETURN_NONE;
}

bool is_thread_enabled(const ThreadBuffer* buffer) {
  return is_enabled(globals()) && (buffer == nullptr || (buffer->rests & kMuted) == 0);
}

PyObject* set_thread_enabled(PyObject*, PyObject* args) {
  int enabled;
  if (!PyArg_ParseTuple(args, "p", &enabled)) return nullptr;
  ThreadBuffer* buffer = enabled != 0 ? registry().existing() : registry().current();
  const bool before = is_thread_enabled(buffer);
  const auto enable = globals().enable.load();
  if (enable != nullptr) enable(enabled != 0);
  if (buffer != nullptr) set_rest(*buffer, kMuted, enabled == 0 && enable == nullptr);
  if (buffer != nullptr) set_rest(*buffer, kMutedInTorch, enabled == 0 && enable != nullptr);
  return PyBool_FromLong(before);
}

PyObject* thread_enabled(PyObject*, PyObject*) {
  return PyBool_FromLong(is_thread_enabled(registry().existing()));
}

PyObject* current_thread_id(PyObject*, PyObject*) {
  if (const auto logical_id = globals().logical_thread_id.load())
    return PyLong_FromUnsignedLongLong(logical_id());
  return PyLong_FromUnsignedLongLong(registry().thread_number());
}

PyObject* set_default_node_id(PyObject*, PyObject* args) {
  long long node_id;
  if (!PyArg_ParseTuple(args, "L", &node_id)) return nullptr;
  recfn::set_default_node_id(node_id);
  Py_RETURN_NONE;
}

PyObject* default_node_id(PyObject*, PyObject*) {
  return PyLong_FromLongLong(recfn::default_node_id());
}

PyObject* extras(PyObject*, PyObject*) { return PyLong_FromUnsignedLong(globals().extras.load()); }

ThreadBuffer* current_buffer() { return registry().current(); }

PyObject* core_api_address(PyObject*, PyObject*) {
  static const CoreApi api{kCoreLayout, &globals(), current_buffer};
  return PyLong_FromVoidPtr(const_cast<CoreApi*>(&api));
}

void before_fork() {
  drain().mutex().lock();
  registry().before_fork();
}

void after_fork_in_parent() {
  registry().after_fork_in_parent();
  drain().mutex().unlock();
}

void after_fork_in_child() {
  globals().generation.fetch_add(1);  // the parent's ranges are nobody's parents here
  turn_short_way(globals());
  drain().after_fork_in_child();
  registry().after_fork_in_child();
  drain().mutex().unlock();
}

PyObject* set_own_directory(PyObject*, PyObject* directory) {
  const char* path = PyUnicode_AsUTF8(directory);
  if (path == nullptr) return nullptr;
  return guarded([path] {
    own_directory() = path;
    return Py_NewRef(Py_None);
  });
}

PyObject* column_dict(std::vector<GivenColumn>& columns) {
  PyObject* dict = PyDict_New();
  for (GivenColumn& given : columns) {
    if (dict == nullptr) break;
    const Reference column(new_column({std::move(given.owner), given.first, given.bytes}));
    if (!column || PyDict_SetItemString(dict, given.name, column.get()) < 0) Py_CLEAR(dict);
  }
  return dict;
}

PyObject* thread_tuple(const ThreadRow& thread) {
  return Py_BuildValue("(KKKK)", static_cast<unsigned long long>(thread.number),
                       static_cast<unsigned long long>(thread.thread_id),
                       static_cast<unsigned long long>(thread.native_id),
                       static_cast<unsigned long long>(thread.ident));
}

// (columns, without those that are seldom filled where none of them is, columns of the announced
// ranges, epoch of the names, names that the caller doesn't have, threads, contexts, how many rows
// closed, by how much the wall clock jumped).
PyObject* told(const Drained& drained) {
  std::vector<GivenColumn> columns = drained.rows.give(), announced = drained.opened.give();
  const Reference rows(column_dict(columns)), opened(rows ? column_dict(announced) : nullptr);
  const Reference names(opened ? list_of(drained.new_names, to_text) : nullptr);
  const Reference threads(names ? list_of(drained.threads, thread_tuple) : nullptr);
  const Reference contexts(threads ? list_of(drained.contexts, context_words) : nullptr);
  if (!contexts) return nullptr;
  return Py_BuildValue("(OOKOOOnL)", rows.get(), opened.get(),
                       static_cast<unsigned long long>(drained.epoch), names.get(), threads.get(),
                       contexts.get(), static_cast<Py_ssize_t>(drained.closed),
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
  without_gil(
      [seconds] { registry().waker().wait(static_cast<uint64_t>(std::max(0.0, seconds) * 1e9)); });
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
                       static_cast<unsigned long long>(drain().discarded()),
                       static_cast<unsigned long long>(lost.unsampled));
}

PyMethodDef recorder_functions[] = {
    {"start", start, METH_VARARGS,
     "start(scopes, buffer_bytes, extras, sampled_alone): record ranges of these scopes."},
    {"stop", stop, METH_NOARGS, "stop(): record nothing more."},
    {"recording", recording, METH_NOARGS, "recording() -> bool"},
    {"set_profiler", set_profiler_of_thread, METH_VARARGS,
     "set_profiler(run): this thread works for that run."},
    {"set_thread_enabled", set_thread_enabled, METH_VARARGS,
     "set_thread_enabled(enabled) -> what it was"},
    {"thread_enabled", thread_enabled, METH_NOARGS,
     "thread_enabled() -> what set_thread_enabled, or PyTorch, says"},
    {"current_thread_id", current_thread_id, METH_NOARGS,
     "current_thread_id() -> RecordFunction's id of this thread"},
    {"set_default_node_id", set_default_node_id, METH_VARARGS,
     "set_default_node_id(node_id): of this process"},
    {"default_node_id", default_node_id, METH_NOARGS,
     "default_node_id() -> of this process, or -1"},
    {"extras", extras, METH_NOARGS, "extras() -> Extra bits of the last start"},
    {"core_api_address", core_api_address, METH_NOARGS,
     "core_api_address() -> address of the CoreApi table."},
    {"set_own_directory", set_own_directory, METH_O,
     "set_own_directory(path): frames of files below it are left out of stacks."},
    {"drain", run_drain, METH_VARARGS,
     "drain(close_open, open_ranges, epoch, known) -> what closed since the last drain."},
    {"count_discarded", count_discarded, METH_O,
     "count_discarded(rows): so many that a drain gave were lost on their way."},
    {"wait", wait, METH_VARARGS,
     "wait(seconds): until wake(), or a thread has filled a quarter of its buffer."},
    {"wake", wake, METH_NOARGS, "wake(): end a wait."},
    {"counters", counters, METH_NOARGS,
     "counters() -> (dropped, lost ends, lost in drain, unsampled)"},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int add_recorder(PyObject* module) {
  globals().use_cycle_counter = cycle_counter_is_invariant();
  static const int at_fork = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  if (at_fork != 0) return PyErr_NoMemory(), -1;
  globals().read_stack.store(python_stack_with_gil);
  return PyModule_AddFunctions(module, recorder_functions);
}

}  // namespace recfn
