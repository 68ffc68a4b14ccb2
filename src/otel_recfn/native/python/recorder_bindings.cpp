// The recorder's switches and its drain in Python, which recording/recorder.py describes.
#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <pthread.h>
#include <utility>
#include <vector>

#include "columns/column.hpp"
#include "columns/fields.hpp"
#include "core/registry.hpp"
#include "core/thread_buffer.hpp"
#include "cpython/python.hpp"
#include "drain/drain.hpp"
#include "drain/node_ids.hpp"
#include "python/python_stack.hpp"
#include "parents/tasks/task_entries.hpp"
#include "recording/begin_end.hpp"

namespace recfn {
namespace {

// A moment by all clocks, in a thread.
struct ThreadMoment {
  uint64_t ticks;
  int64_t monotonic_ns, unix_ns;
  uint64_t enclosing;  // as enclosing_range
};

constexpr auto fields_of(const ThreadMoment*) {
  return std::array{RECFN_FIELD(ThreadMoment, ticks), RECFN_FIELD(ThreadMoment, monotonic_ns),
                    RECFN_FIELD(ThreadMoment, unix_ns), RECFN_FIELD(ThreadMoment, enclosing)};
}

// A span that was current, as rows of a drain index it.
struct ContextRow {
  uint64_t trace_high, trace_low, span_id, flags;
};

constexpr auto fields_of(const ContextRow*) {
  return std::array{RECFN_FIELD(ContextRow, trace_high), RECFN_FIELD(ContextRow, trace_low),
                    RECFN_FIELD(ContextRow, span_id), RECFN_FIELD(ContextRow, flags)};
}

struct Counters {
  uint64_t dropped, lost_ends, lost_in_drain, unsampled;
};

constexpr auto fields_of(const Counters*) {
  return std::array{RECFN_FIELD(Counters, dropped), RECFN_FIELD(Counters, lost_ends),
                    RECFN_FIELD(Counters, lost_in_drain), RECFN_FIELD(Counters, unsampled)};
}

RecordType drained_type;
RowRecordType<ThreadRow> thread_type;
RowRecordType<ContextRow> context_type;
RowRecordType<TrainingStep> step_type;
RowRecordType<Sample> sample_type;
RowRecordType<ThreadMoment> moment_type;
RowRecordType<Counters> counters_type;

// Ranges of an earlier recording are nobody's parents from here on.
void begin_recording() {
  without_gil([] {
    const std::lock_guard lock(drain().mutex());
    drain().begin_recording();
    globals().epoch.fetch_add(1);
  });
}

PyObject* start(PyObject*, PyObject* args) {
  unsigned int scopes, extras;
  unsigned long long buffer_bytes;
  int sampled_alone;
  if (!PyArg_ParseTuple(args, "IKIp", &scopes, &buffer_bytes, &extras, &sampled_alone)) {
    return nullptr;
  }
  Globals& shared = globals();
  registry().set_buffer_bytes(buffer_bytes);
  const uint32_t before = shared.recording.load();
  if ((before & kRecordingBit) == 0) {
    begin_recording();
    forget_open_ranges();
  }
  shared.extras.store(extras);
  shared.sampled_alone.store(sampled_alone != 0 ? 1 : 0);
  const uint32_t stack_bit = (extras & kStackExtra) != 0 ? kStackBit : 0;
  // Last: a begin that sees it sees all that is stored above, the new epoch, too.
  shared.recording.store(scopes | kRecordingBit | stack_bit | (before & kObservedBit));
  Py_RETURN_NONE;
}

PyObject* stop(PyObject*, PyObject*) {
  const uint32_t before = globals().recording.fetch_and(kObservedBit);
  if ((before & kRecordingBit) != 0) drain().end_recording();
  Py_RETURN_NONE;
}

PyObject* recording(PyObject*, PyObject*) {
  return PyBool_FromLong((globals().recording.load() & kRecordingBit) != 0);
}

PyObject* set_thread_profiler(PyObject*, PyObject* args) {
  unsigned int profiler;
  if (!PyArg_ParseTuple(args, "I", &profiler)) return nullptr;
  ThreadBuffer* buffer = profiler != 0 ? registry().current() : registry().existing();
  if (buffer != nullptr) set_profiler(*buffer, profiler);
  Py_RETURN_NONE;
}

bool is_thread_enabled(const ThreadBuffer* buffer) {
  return is_enabled(globals()) &&
         (buffer == nullptr || (buffer->recording.disabled_by & kDisabled) == 0);
}

PyObject* set_thread_enabled(PyObject*, PyObject* args) {
  int enabled;
  if (!PyArg_ParseTuple(args, "p", &enabled)) return nullptr;
  ThreadBuffer* buffer = enabled != 0 ? registry().existing() : registry().current();
  const bool before = is_thread_enabled(buffer);
  const auto enable = observer_hooks(globals()).enable;
  if (enable != nullptr) enable(enabled != 0);
  if (buffer != nullptr) set_disabled(*buffer, kDisabled, enabled == 0 && enable == nullptr);
  if (buffer != nullptr) set_disabled(*buffer, kDisabledInTorch, enabled == 0 && enable != nullptr);
  return PyBool_FromLong(before);
}

PyObject* thread_enabled(PyObject*, PyObject*) {
  return PyBool_FromLong(is_thread_enabled(registry().existing()));
}

PyObject* current_thread_id(PyObject*, PyObject*) {
  return PyLong_FromUnsignedLongLong(registry().logical_id());
}

// Event id of the innermost range that is open on the thread's stack; 0: there is none.
uint64_t enclosing_range(const ThreadBuffer* buffer) {
  for (uint32_t at = buffer != nullptr ? buffer->open.depth : 0; at > 0; --at) {
    const OpenEntry& open = buffer->stack[at - 1];
    const bool encloses = open.ordinal() != 0 && (open.word & OpenEntry::kAsyncBit) == 0;
    if (encloses) return make_event_id(buffer->number, open.ordinal());
  }
  return 0;
}

PyObject* moment(PyObject*, PyObject*) {
  const Moment now = drain().now();
  return moment_type.make(
      {now.ticks, now.monotonic_ns, now.unix_ns, enclosing_range(registry().existing())});
}

PyObject* follow_torchs_thread_ids(PyObject*, PyObject* address) {
  void* const function = PyLong_AsVoidPtr(address);
  if (function == nullptr) return PyErr_Occurred() != nullptr ? nullptr : Py_NewRef(Py_None);
  registry().follow_torch(reinterpret_cast<uint64_t (*)()>(function));
  Py_RETURN_NONE;
}

PyObject* thread_id_of(PyObject*, PyObject* torchs_id) {
  const uint64_t id = PyLong_AsUnsignedLongLong(torchs_id);
  if (PyErr_Occurred() != nullptr) return nullptr;
  return PyLong_FromUnsignedLongLong(registry().logical_id_of(id));
}

PyObject* set_default_node_id(PyObject*, PyObject* args) {
  long long node_id;
  if (!PyArg_ParseTuple(args, "L", &node_id)) return nullptr;
  node_ids().set(node_id);
  Py_RETURN_NONE;
}

PyObject* default_node_id(PyObject*, PyObject*) { return PyLong_FromLongLong(node_ids().now()); }

PyObject* extras(PyObject*, PyObject*) { return PyLong_FromUnsignedLong(globals().extras.load()); }

ThreadBuffer* current_buffer() { return registry().current(); }

PyObject* core_api_address(PyObject*, PyObject*) {
  static const CoreApi api{kCoreLayout, &globals(), current_buffer};
  return PyLong_FromVoidPtr(const_cast<CoreApi*>(&api));
}

// In the order in which a drain takes these locks, which others may hold as the process is copied.
void before_fork() {
  drain().before_fork();
  registry().before_fork();
  node_ids().before_fork();
}

void after_fork_in_parent() {
  node_ids().after_fork();
  registry().after_fork_in_parent();
  drain().after_fork();
}

void after_fork_in_child() {
  globals().epoch.fetch_add(1);  // the parent's ranges are nobody's parents here
  drain().after_fork_in_child();
  registry().after_fork_in_child();
  node_ids().after_fork();
  drain().after_fork();
}

PyObject* set_own_directory(PyObject*, PyObject* directory) {
  const char* path = PyUnicode_AsUTF8(directory);
  if (path == nullptr) return nullptr;
  return guarded([path] {
    own_directory() = path;
    return Py_NewRef(Py_None);
  });
}

PyObject* column_dict(std::vector<OwnedColumn>& columns) {
  PyObject* dict = PyDict_New();
  for (OwnedColumn& owned : columns) {
    if (dict == nullptr) break;
    const Reference column(new_column({std::move(owned.owner), owned.first, owned.bytes}));
    if (!column || PyDict_SetItemString(dict, owned.name, column.get()) < 0) Py_CLEAR(dict);
  }
  return dict;
}

PyObject* context_record(const Context& context) {
  return context_type.make({context.trace_high, context.trace_low, context.span_id, context.flags});
}

// The names of what drained_record gives, in its order.
bool add_drained_type(PyObject* module) {
  return drained_type.add_to(module, "otel_recfn._native.Drained",
                             "What closed since the last drain.",
                             {"rows", "opened", "epoch", "new_names", "threads", "contexts",
                              "closed", "clock_jump_ns", "steps", "unfinished_steps", "samples"});
}

PyObject* drained_record(const Drained& drained) {
  std::vector<OwnedColumn> columns = drained.rows.release_columns();
  std::vector<OwnedColumn> opened_columns = drained.opened.release_columns();
  Reference rows(column_dict(columns));
  Reference opened(rows ? column_dict(opened_columns) : nullptr);
  Reference new_names(opened ? list_of(drained.new_names, to_text) : nullptr);
  Reference threads(new_names ? thread_type.list(drained.threads) : nullptr);
  Reference contexts(threads ? list_of(drained.contexts, context_record) : nullptr);
  Reference steps(contexts ? step_type.list(drained.steps) : nullptr);
  Reference unfinished_steps(steps ? step_type.list(drained.unfinished_steps) : nullptr);
  Reference samples(unfinished_steps ? sample_type.list(drained.samples) : nullptr);
  if (!samples) return nullptr;
  return drained_type.make(std::move(rows), std::move(opened),
                           Reference(PyLong_FromUnsignedLongLong(drained.epoch)),
                           std::move(new_names), std::move(threads), std::move(contexts),
                           Reference(PyLong_FromSize_t(drained.closed)),
                           Reference(PyLong_FromLongLong(drained.clock_jump_ns)), std::move(steps),
                           std::move(unfinished_steps), std::move(samples));
}

PyObject* run_drain(PyObject*, PyObject* args, PyObject* keywords) {
  static const char* names[] = {"close_open",    "open_ranges", "end_steps", "idle_ns",
                                "short_idle_ns", "epoch",       "known",     nullptr};
  int close_open, open_ranges, end_steps;
  long long idle_ns, short_idle_ns;
  unsigned long long epoch, known;
  prepare_for_exceptions();
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "$pppLLKK:drain", const_cast<char**>(names),
                                   &close_open, &open_ranges, &end_steps, &idle_ns, &short_idle_ns,
                                   &epoch, &known)) {
    return nullptr;
  }
  Drained drained;  // nobody holds the drain's lock while Python's objects are made of it
  const bool has_run = without_gil([&] {
    const std::lock_guard lock(drain().mutex());
    const IdleLimits idle_limits{idle_ns, short_idle_ns};
    drained =
        drain().run(close_open != 0, open_ranges != 0, end_steps != 0, idle_limits, epoch, known);
  });
  PyObject* const result = has_run ? guarded([&] { return drained_record(drained); }) : nullptr;
  if (result == nullptr) drain().count_discarded(drained.closed);
  return result;
}

PyObject* trace_of(PyObject*, PyObject* args) {
  unsigned long long event_id;
  long long idle_ns, short_idle_ns;
  prepare_for_exceptions();
  if (!PyArg_ParseTuple(args, "KLL", &event_id, &idle_ns, &short_idle_ns)) return nullptr;
  std::optional<NamedTraceStart> start;
  const bool has_run = without_gil([&] {
    const std::lock_guard lock(drain().mutex());
    start = drain().trace_of(event_id, {idle_ns, short_idle_ns});
  });
  if (!has_run) return nullptr;
  if (!start) Py_RETURN_NONE;
  const Reference name(to_text(start->name));
  if (!name) return nullptr;
  return Py_BuildValue("(KOII)", static_cast<unsigned long long>(start->first), name.get(),
                       start->source, start->flags);
}

PyObject* discard_unread(PyObject*, PyObject*) {
  prepare_for_exceptions();
  const bool has_run = without_gil([] {
    const std::lock_guard lock(drain().mutex());
    drain().discard_unread();
  });
  return has_run ? Py_NewRef(Py_None) : nullptr;
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
  return counters_type.make(
      {lost.dropped, globals().remote_ends.lost(), drain().discarded(), lost.unsampled});
}

PyMethodDef recorder_functions[] = {
    {"start", start, METH_VARARGS,
     "start(scopes, buffer_bytes, extras, sampled_alone): record ranges of these scopes."},
    {"stop", stop, METH_NOARGS, "stop(): record nothing more."},
    {"recording", recording, METH_NOARGS, "recording() -> bool"},
    {"set_profiler", set_thread_profiler, METH_VARARGS,
     "set_profiler(run): this thread works for that run."},
    {"set_thread_enabled", set_thread_enabled, METH_VARARGS,
     "set_thread_enabled(enabled) -> what it was"},
    {"thread_enabled", thread_enabled, METH_NOARGS,
     "thread_enabled() -> what set_thread_enabled, or PyTorch, says"},
    {"current_thread_id", current_thread_id, METH_NOARGS,
     "current_thread_id() -> RecordFunction's id of this thread"},
    {"moment", moment, METH_NOARGS, "moment() -> Moment, by all clocks, in this thread."},
    {"follow_torchs_thread_ids", follow_torchs_thread_ids, METH_O,
     "follow_torchs_thread_ids(address): of PyTorch's function that numbers the calling thread."},
    {"thread_id_of", thread_id_of, METH_O,
     "thread_id_of(PyTorch's id) -> RecordFunction's id of that thread"},
    {"set_default_node_id", set_default_node_id, METH_VARARGS,
     "set_default_node_id(node_id): of this process"},
    {"default_node_id", default_node_id, METH_NOARGS,
     "default_node_id() -> of this process, or -1"},
    {"extras", extras, METH_NOARGS, "extras() -> Extra bits of the last start"},
    {"core_api_address", core_api_address, METH_NOARGS,
     "core_api_address() -> address of the CoreApi table."},
    {"set_own_directory", set_own_directory, METH_O,
     "set_own_directory(path): frames of files below it are left out of stacks."},
    {"drain", with_keywords(run_drain), METH_VARARGS | METH_KEYWORDS,
     "drain(*, close_open, open_ranges, end_steps, idle_ns, short_idle_ns, epoch, known)\n--\n\n"
     "Drained: what closed since the last drain."},
    {"trace_of", trace_of, METH_VARARGS,
     "trace_of(event_id, idle_ns, short_idle_ns) -> what begins the trace of an open range"},
    {"discard_unread", discard_unread, METH_NOARGS,
     "discard_unread(): no drain follows; what was begun and not read is counted as lost in the "
     "drain."},
    {"count_discarded", count_discarded, METH_O,
     "count_discarded(rows): so many that a drain gave were lost on their way."},
    {"wait", wait, METH_VARARGS,
     "wait(seconds): until wake(), or a thread has filled a quarter of its buffer."},
    {"wake", wake, METH_NOARGS, "wake(): end a wait."},
    {"counters", counters, METH_NOARGS,
     "counters() -> Counters: how much isn't in the rows of drains."},
    {nullptr, nullptr, 0, nullptr}};

bool add_records(PyObject* module) {
  return add_drained_type(module) &&
         thread_type.add_to(module, "otel_recfn._native.ThreadRow",
                            "A thread of a drain's rows.") &&
         context_type.add_to(module, "otel_recfn._native.ContextRow",
                             "A span that was current, of a drain's rows.") &&
         step_type.add_to(module, "otel_recfn._native.TrainingStep",
                          "A training step that is over.") &&
         sample_type.add_to(module, "otel_recfn._native.Sample",
                            "What a thread ran in Python while it recorded nothing.") &&
         moment_type.add_to(module, "otel_recfn._native.Moment",
                            "A moment by all clocks, in a thread.") &&
         counters_type.add_to(module, "otel_recfn._native.Counters",
                              "How much isn't in the rows of drains.");
}

}  // namespace

int add_recorder(PyObject* module) {
  globals().use_cycle_counter = cycle_counter_is_invariant();
  static const int at_fork = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  if (at_fork != 0) {
    PyErr_NoMemory();
    return -1;
  }
  if (!add_records(module)) return -1;
  return PyModule_AddFunctions(module, recorder_functions);
}

}  // namespace recfn
