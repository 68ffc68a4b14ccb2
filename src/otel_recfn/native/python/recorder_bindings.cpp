// The recorder's functions in Python, all of them short: recording/native_recorder.py gives them the shape of the protocol.
#include "python/recorder_bindings.hpp"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <new>

#include "columns/column.hpp"
#include "core/core_api.hpp"
#include "drain/drain.hpp"
#include "cpython/interpreters.hpp"
#include "python/python_stack.hpp"
#include "python/range_observer.hpp"
#include "python/record_function_type.hpp"
#include "python/task_entries.hpp"
#include "python/text.hpp"

namespace recfn {
namespace {

PyObject* context_reader = nullptr;  // () -> (trace high, trace low, span id, flags, enclosing, root, span) | None
PyObject* thread_noter = nullptr;    // (thread number) -> None, in the thread

uint64_t contextvars_version() {
  const PyThreadState* state = PyGILState_GetThisThreadState();
  return state != nullptr ? state->context_ver : 0;
}

// A call may let another thread replace what is called: it is held meanwhile.
void note_thread(ThreadBuffer& buffer) {
  buffer.name_noted = true;
  PyObject* noter = Py_NewRef(thread_noter);
  PyObject* result = PyObject_CallFunction(noter, "K", static_cast<unsigned long long>(buffer.number));
  Py_XDECREF(result);
  Py_DECREF(noter);
}

int raise_again(void* error) {
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(static_cast<PyObject*>(error))), static_cast<PyObject*>(error));
  Py_DECREF(static_cast<PyObject*>(error));
  return -1;
}

// An Exception is the reader's own failure. What else comes out of it was raised in the program while it ran, by a signal
// handler for instance (KeyboardInterrupt): an operator can't pass that on, so the main thread's next Python instruction does.
void hand_on_error() {
  if (PyErr_Occurred() != nullptr && PyErr_ExceptionMatches(PyExc_Exception)) PyErr_Clear();
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  if (type == nullptr) return;
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback != nullptr) PyException_SetTraceback(value, traceback);
  Py_XDECREF(type), Py_XDECREF(traceback);
  if (Py_AddPendingCall(raise_again, value) < 0) Py_DECREF(value);
}

// A new reference; null where there is nothing to read.
PyObject* call_context_reader() {
  if (context_reader == nullptr || PyErr_Occurred() != nullptr) return nullptr;
  PyObject* reader = Py_NewRef(context_reader);
  PyObject* reading = PyObject_CallNoArgs(reader);
  Py_DECREF(reader);
  return reading;
}

void view_current(ThreadBuffer& buffer, TaskView& view) {
  if (!buffer.name_noted && thread_noter != nullptr) note_thread(buffer);
  PyObject *reading = call_context_reader(), *span = nullptr;
  if (reading != nullptr && reading != Py_None) {
    unsigned long long words[6];
    if (PyArg_ParseTuple(reading, "KKKKKKO", &words[0], &words[1], &words[2], &words[3], &words[4], &words[5], &span)) {
      view.current = Context{words[0], words[1], words[2], words[3], words[4], words[5]};
    }
  }
  hand_on_error();
  view_task(view, span);
  Py_XDECREF(reading);
}

// The one look at Python from an operator's thread; threads that Python doesn't know have no context to look at.
void read_context(ThreadBuffer& buffer, TaskView& view) {
  if (!python_knows_this_thread()) return;
  const PyGILState_STATE state = PyGILState_Ensure();
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  view_current(buffer, view);
  PyErr_Restore(type, value, traceback);
  PyGILState_Release(state);
}

// Calls work() without the GIL. False, with the error set, when memory ran out in it.
template <typename Work>
bool without_gil(Work work) {
  bool out_of_memory = false;
  Py_BEGIN_ALLOW_THREADS;
  try {
    work();
  } catch (const std::bad_alloc&) {
    out_of_memory = true;
  }
  Py_END_ALLOW_THREADS;
  if (out_of_memory) PyErr_NoMemory();
  return !out_of_memory;
}

// Ranges of an earlier recording are nobody's parents from here on.
void begin_recording() {
  without_gil([] {
    const std::lock_guard lock(drain().mutex());
    drain().begin_recording();
  });
  globals().generation.fetch_add(1);
}

PyObject* start(PyObject*, PyObject* args) {
  unsigned int scopes, extras;
  unsigned long long buffer_bytes;
  if (!PyArg_ParseTuple(args, "IKI", &scopes, &buffer_bytes, &extras)) return nullptr;
  Globals& shared = globals();
  registry().set_buffer_bytes(buffer_bytes);
  const uint32_t before = shared.recording.load();
  if ((before & kRecordingBit) == 0) {
    begin_recording();
    forget_open_ranges();
  }
  shared.extras.store(extras);
  shared.recording.store(scopes | kRecordingBit | ((extras & kStackExtra) != 0 ? kStackBit : 0) | (before & kObservedBit));
  Py_RETURN_NONE;
}

PyObject* stop(PyObject*, PyObject*) {
  globals().recording.fetch_and(kObservedBit);
  Py_RETURN_NONE;
}

PyObject* recording(PyObject*, PyObject*) { return PyBool_FromLong((globals().recording.load() & kRecordingBit) != 0); }

// The calling thread's buffer, or null, counted as a drop.
ThreadBuffer* buffer_or_drop() {
  ThreadBuffer* buffer = registry().current();
  if (buffer == nullptr) globals().dropped_without_buffer.fetch_add(1, std::memory_order_relaxed);
  return buffer;
}

PyObject* as_event_id(uint64_t event_id) { return PyLong_FromUnsignedLongLong(event_id); }

PyObject* begin(PyObject*, PyObject* args) {
  PyObject *name, *module, *shapes, *dtypes;
  unsigned int scope, source, flags;
  long long sequence_nr, debug_handle;
  unsigned long long forward_thread_id, handle;
  if (!PyArg_ParseTuple(args, "UIIUILKKLUU", &name, &scope, &source, &module, &flags, &sequence_nr, &forward_thread_id, &handle,
                        &debug_handle, &shapes, &dtypes)) {
    return nullptr;
  }
  const uint32_t recording = globals().recording.load(std::memory_order_acquire);
  const bool selected = source == kModuleSource ? (recording & kRecordingBit) != 0 : selects(recording, scope);
  ThreadBuffer* buffer = selected ? buffer_or_drop() : nullptr;
  if (buffer == nullptr) return as_event_id(0);
  const Utf8 name_text(name, kMaxNameBytes), module_text(module, kMaxNameBytes);
  const Utf8 shapes_text(shapes, UINT32_MAX), dtypes_text(dtypes, UINT32_MAX);
  const bool fits = shapes_text.text().size <= kMaxShapesBytes && dtypes_text.text().size <= kMaxShapesBytes;
  char stack[kMaxStackBytes];
  RareExtras rare;
  rare.module = module_text.text();
  if (fits) rare.shapes_text = shapes_text.text(), rare.dtypes_text = dtypes_text.text();
  if ((recording & kStackBit) != 0 && scope != kBackwardScope) rare.stack = {stack, python_stack(stack, sizeof stack)};
  Begin range;
  range.name = name_text.text();
  range.scope = scope;
  range.flags = (flags & kEventFlags) | source << kSourceShift;
  range.handle = handle, range.sequence_nr = sequence_nr, range.forward_thread_id = forward_thread_id;
  range.has_numbers = handle != 0 || sequence_nr != -1;
  range.extras.debug_handle = debug_handle;
  if (rare_words(rare) != 0) range.extras.rare = &rare;
  const uint64_t event_id = begin_range<false>(globals(), *buffer, range, true);
  if (event_id != 0) keep_open_range(*buffer, event_id, scope, source, (flags & kAsync) == 0);
  return as_event_id(event_id);
}

PyObject* end(PyObject*, PyObject* args) {
  unsigned long long event_id;
  PyObject* error = nullptr;
  unsigned int flags = 0;
  if (!PyArg_ParseTuple(args, "K|UI", &event_id, &error, &flags)) return nullptr;
  const uint32_t shown = forget_open_range(event_id);
  ThreadBuffer* buffer = event_id != 0 ? registry().current() : nullptr;
  if (buffer != nullptr) {
    const Utf8 error_text(error, kMaxErrorBytes);
    const Text text = error_text.text();
    end_range(globals(), *buffer, event_id, 0, shown | (flags & kEventFlags) | (text.size != 0 ? uint32_t{kError} : 0u), text);
  }
  Py_RETURN_NONE;
}

PyObject* mark(PyObject*, PyObject* name) {
  if (!PyUnicode_Check(name)) return PyErr_Format(PyExc_TypeError, "mark takes a name, a str, not %s", Py_TYPE(name)->tp_name);
  const bool recording = (globals().recording.load(std::memory_order_acquire) & kRecordingBit) != 0;
  ThreadBuffer* buffer = recording ? buffer_or_drop() : nullptr;
  if (buffer == nullptr) return as_event_id(0);
  const Utf8 text(name, kMaxNameBytes);
  return as_event_id(put_point(globals(), *buffer, kMark, text.text(), 0, kMayLook));
}

PyObject* memory(PyObject*, PyObject* args) {
  long long nbytes;
  PyObject* device;
  if (!PyArg_ParseTuple(args, "LU", &nbytes, &device)) return nullptr;
  const bool recording = (globals().recording.load(std::memory_order_acquire) & kRecordingBit) != 0;
  const bool wanted = recording && (globals().extras.load() & kMemoryExtra) != 0;
  ThreadBuffer* buffer = wanted ? buffer_or_drop() : nullptr;
  if (buffer == nullptr) return as_event_id(0);
  const Utf8 text(device, kMaxNameBytes);
  return as_event_id(put_point(globals(), *buffer, kMemory, text.text(), nbytes, kMayLook));
}

PyObject* set_profiler_of_thread(PyObject*, PyObject* args) {
  unsigned int profiler;
  if (!PyArg_ParseTuple(args, "I", &profiler)) return nullptr;
  ThreadBuffer* buffer = profiler != 0 ? registry().current() : registry().existing();
  if (buffer != nullptr) set_profiler(*buffer, profiler);
  Py_RETURN_NONE;
}

PyObject* profiler_of_thread(PyObject*, PyObject*) {
  const auto read = globals().read_profiler.load();
  const uint32_t carried = read != nullptr ? read() : 0;
  const ThreadBuffer* buffer = registry().existing();
  return PyLong_FromUnsignedLong(carried != 0 || buffer == nullptr ? carried : buffer->profiler);
}

PyObject* set_thread_enabled(PyObject*, PyObject* args) {
  int enabled;
  if (!PyArg_ParseTuple(args, "p", &enabled)) return nullptr;
  ThreadBuffer* buffer = enabled != 0 ? registry().existing() : registry().current();
  const bool before = buffer == nullptr || !buffer->muted;
  if (buffer != nullptr) mute(*buffer, enabled == 0);
  return PyBool_FromLong(before);
}

PyObject* current_thread_id(PyObject*, PyObject*) {
  if (const auto logical_id = globals().logical_thread_id.load()) return as_event_id(logical_id());
  return as_event_id(registry().thread_number());
}

PyObject* set_default_node_id(PyObject*, PyObject* args) {
  long long node_id;
  if (!PyArg_ParseTuple(args, "L", &node_id)) return nullptr;
  globals().own_node_id.store(node_id);
  Py_RETURN_NONE;
}

PyObject* default_node_id(PyObject*, PyObject*) { return PyLong_FromLongLong(current_node_id()); }

PyObject* extras(PyObject*, PyObject*) { return PyLong_FromUnsignedLong(globals().extras.load()); }

struct NamedColumn {
  const char* name;
  std::vector<char> bytes;
};

// Owns a reference, or null, which says that making the object failed.
struct Made {
  PyObject* object;
  explicit Made(PyObject* made) : object(made) {}
  Made(const Made&) = delete;
  Made& operator=(const Made&) = delete;
  ~Made() { Py_XDECREF(object); }
};

PyObject* column_dict(std::vector<NamedColumn>& columns) {
  PyObject* dict = PyDict_New();
  for (NamedColumn& named : columns) {
    if (dict == nullptr) break;
    const Made column(new_column(std::move(named.bytes)));
    if (column.object == nullptr || PyDict_SetItemString(dict, named.name, column.object) < 0) Py_CLEAR(dict);
  }
  return dict;
}

// Rows to columns, a block of rows at a time: a block stays in the cache while every column takes its part of it.
template <typename R>
class ColumnWriter {
 public:
  ColumnWriter(const std::vector<R>& rows, size_t count) : rows_(rows), count_(count) {}

  // `each_field` calls add() for every field.
  template <typename EachField>
  std::vector<NamedColumn> write(EachField each_field) {
    for (first_ = 0; first_ < count_ || first_ == 0; first_ += kBlock) {
      next_ = 0;
      each_field(*this);
    }
    return std::move(columns_);
  }

  template <typename T>
  void add(const char* name, T R::*field) {
    if (next_ == columns_.size()) columns_.push_back({name, std::vector<char>(count_ * sizeof(T))});
    auto* values = reinterpret_cast<T*>(columns_[next_++].bytes.data());
    const size_t end = std::min(count_, first_ + kBlock);
    for (size_t row = first_; row < end; ++row) values[row] = rows_[row].*field;
  }

 private:
  static constexpr size_t kBlock = 256;

  const std::vector<R>& rows_;
  const size_t count_;
  std::vector<NamedColumn> columns_;
  size_t first_ = 0, next_ = 0;
};

void each_row_field(ColumnWriter<Row>& to) {
  to.add("event_id", &Row::event_id), to.add("name", &Row::name), to.add("scope", &Row::scope);
  to.add("source", &Row::source), to.add("start_ns", &Row::start_ns), to.add("end_ns", &Row::end_ns);
  to.add("thread", &Row::thread), to.add("end_thread", &Row::end_thread), to.add("sequence_nr", &Row::sequence_nr);
  to.add("forward_thread_id", &Row::forward_thread_id), to.add("handle", &Row::handle), to.add("parent", &Row::parent);
  to.add("root", &Row::root), to.add("context", &Row::context), to.add("debug_handle", &Row::debug_handle);
  to.add("flags", &Row::flags), to.add("shapes", &Row::shapes), to.add("dtypes", &Row::dtypes);
  to.add("module", &Row::module), to.add("error", &Row::error), to.add("kind", &Row::kind);
}

void each_uncommon_field(ColumnWriter<Row>& to) {
  to.add("profiler", &Row::profiler), to.add("flops", &Row::flops), to.add("stack", &Row::stack);
  to.add("nbytes", &Row::nbytes), to.add("device", &Row::device);
}

void each_opened_field(ColumnWriter<OpenedRow>& to) {
  to.add("event_id", &OpenedRow::event_id), to.add("name", &OpenedRow::name), to.add("source", &OpenedRow::source);
  to.add("start_ns", &OpenedRow::start_ns), to.add("thread", &OpenedRow::thread), to.add("context", &OpenedRow::context);
}

std::vector<NamedColumn> to_columns(const Drained& drained, size_t size) {
  std::vector<NamedColumn> columns = ColumnWriter(drained.rows, size).write(each_row_field);
  if (drained.has_uncommon) {
    for (NamedColumn& column : ColumnWriter(drained.rows, size).write(each_uncommon_field)) columns.push_back(std::move(column));
  }
  std::vector<char> node_ids(size * sizeof(int64_t));
  std::fill_n(reinterpret_cast<int64_t*>(node_ids.data()), size, drained.node_id);
  columns.push_back({"node_id", std::move(node_ids)});
  return columns;
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

constexpr size_t kFewestRows = 256;  // less memory than these take is too little to go on

// What a drain read, apart from the drain: nobody holds its lock while Python's objects are made.
struct Sealed {
  uint64_t run, epoch;
  size_t rows, closed;
  int64_t clock_jump_ns;
  bool complete;
  std::vector<NamedColumn> columns, opened;
  std::vector<std::string> new_names;
  std::vector<ThreadRow> threads;
  std::vector<Context> contexts;
};

// The columns of as many rows as there is memory for. Copies of open ranges are no use without all rows.
std::vector<NamedColumn> columns_that_fit(const Drained& drained, size_t& rows) {
  for (;;) {
    try {
      return to_columns(drained, rows);
    } catch (const std::bad_alloc&) {
      if (drained.closed != drained.rows.size() || rows < 2 * kFewestRows) throw;
      rows /= 2;
    }
  }
}

Sealed seal(bool close_open, bool open_ranges, uint64_t epoch, size_t known) {
  const std::lock_guard lock(drain().mutex());
  const Drained& drained = drain().run(close_open, open_ranges);
  const NamePool& names = drain().names();
  Sealed sealed{};
  for (size_t at = names.epoch() == epoch ? known : 0; at < names.size(); ++at) sealed.new_names.push_back(names.text(at));
  sealed.run = drain().runs(), sealed.epoch = names.epoch(), sealed.clock_jump_ns = drained.clock_jump_ns;
  sealed.threads = drained.threads, sealed.contexts = drained.contexts;
  sealed.opened = ColumnWriter(drained.opened, drained.opened.size()).write(each_opened_field);
  sealed.rows = drained.rows.size();
  sealed.columns = columns_that_fit(drained, sealed.rows);
  sealed.closed = std::min(sealed.rows, drained.closed);
  sealed.complete = drained.complete && sealed.rows == drained.rows.size();
  return sealed;
}

// (columns, without those that are zero in every row, columns of the announced ranges, epoch of the names, names from `known` on,
// threads, contexts, how many rows closed, by how much the wall clock jumped, whether that is all, number of the drain, how many
// rows). `known`: how many names of `epoch` the caller has.
PyObject* run_drain(PyObject*, PyObject* args) {
  int close_open, open_ranges;
  unsigned long long epoch, known;
  if (!PyArg_ParseTuple(args, "ppKK", &close_open, &open_ranges, &epoch, &known)) return nullptr;
  Sealed sealed;
  if (!without_gil([&] { sealed = seal(close_open != 0, open_ranges != 0, epoch, known); })) return nullptr;
  const Made rows(column_dict(sealed.columns)), opened(rows.object ? column_dict(sealed.opened) : nullptr);
  const Made names(opened.object ? to_list(sealed.new_names, text_object) : nullptr);
  const Made threads(names.object ? to_list(sealed.threads, thread_tuple) : nullptr);
  const Made contexts(threads.object ? to_list(sealed.contexts, context_tuple) : nullptr);
  if (contexts.object == nullptr) return nullptr;
  return Py_BuildValue("(OOKOOOnLOKn)", rows.object, opened.object, static_cast<unsigned long long>(sealed.epoch), names.object,
                       threads.object, contexts.object, static_cast<Py_ssize_t>(sealed.closed),
                       static_cast<long long>(sealed.clock_jump_ns), sealed.complete ? Py_True : Py_False, static_cast<unsigned long long>(sealed.run),
                       static_cast<Py_ssize_t>(sealed.rows));
}

PyObject* taken(PyObject*, PyObject* args) {
  unsigned long long run;
  Py_ssize_t rows;
  if (!PyArg_ParseTuple(args, "Kn", &run, &rows)) return nullptr;
  bool mine = false;
  without_gil([&] {
    const std::lock_guard lock(drain().mutex());
    mine = drain().taken(run, static_cast<size_t>(rows));
  });
  return PyBool_FromLong(mine);
}

PyObject* wait(PyObject*, PyObject* args) {
  double seconds;
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
  return Py_BuildValue("(KKKKK)", static_cast<unsigned long long>(registry().recorded()),
                       static_cast<unsigned long long>(registry().dropped()),
                       static_cast<unsigned long long>(globals().remote_ends.lost()),
                       static_cast<unsigned long long>(drain().discarded()),
                       static_cast<unsigned long long>(registry().shortened()));
}

void replace(PyObject*& held, PyObject* by) {
  PyObject* old = held;
  held = by == Py_None ? nullptr : Py_NewRef(by);
  Py_XDECREF(old);
}

PyObject* set_context_reader(PyObject*, PyObject* args) {
  PyObject *reader, *noter;
  if (!PyArg_ParseTuple(args, "OO", &reader, &noter)) return nullptr;
  replace(context_reader, reader);
  replace(thread_noter, noter);
  const bool wanted = context_reader != nullptr || thread_noter != nullptr;
  globals().context_version.store(wanted ? contextvars_version : nullptr);
  globals().read_context.store(wanted ? read_context : nullptr);
  Py_RETURN_NONE;
}

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
  drain().after_fork_in_child();
  registry().after_fork_in_child();
  drain().mutex().unlock();
}

PyMethodDef functions[] = {
    {"start", start, METH_VARARGS, "start(scopes, buffer_bytes, extras): record ranges of these scopes."},
    {"stop", stop, METH_NOARGS, "stop(): record nothing more."},
    {"recording", recording, METH_NOARGS, "recording() -> bool"},
    {"begin", begin, METH_VARARGS,
     "begin(name, scope, source, module, flags, sequence_nr, forward_thread_id, handle, debug_handle, shapes, dtypes) -> event id, "
     "0 when not recorded."},
    {"end", end, METH_VARARGS, "end(event_id, error='', flags=0)"},
    {"mark", mark, METH_O, "mark(name) -> event id, 0 when not recorded."},
    {"memory", memory, METH_VARARGS, "memory(nbytes, device) -> event id, 0 when not recorded."},
    {"set_profiler", set_profiler_of_thread, METH_VARARGS, "set_profiler(run): this thread works for that run."},
    {"profiler", profiler_of_thread, METH_NOARGS, "profiler() -> the run that this thread works for, or 0"},
    {"set_thread_enabled", set_thread_enabled, METH_VARARGS, "set_thread_enabled(enabled) -> what it was"},
    {"current_thread_id", current_thread_id, METH_NOARGS, "current_thread_id() -> RecordFunction's id of this thread"},
    {"set_default_node_id", set_default_node_id, METH_VARARGS, "set_default_node_id(node_id): of this process"},
    {"default_node_id", default_node_id, METH_NOARGS, "default_node_id() -> of this process, or -1"},
    {"extras", extras, METH_NOARGS, "extras() -> Extra bits of the last start"},
    {"drain", run_drain, METH_VARARGS, "drain(close_open, open_ranges, epoch, known) -> what closed since the last drain."},
    {"taken", taken, METH_VARARGS, "taken(drain, rows) -> whether the rows of that drain are the caller's; others come again."},
    {"wait", wait, METH_VARARGS, "wait(seconds): until wake(), or a thread has filled a quarter of its buffer."},
    {"wake", wake, METH_NOARGS, "wake(): end a wait."},
    {"discard", discard, METH_NOARGS, "discard(): give up, and count, what was recorded and not taken."},
    {"counters", counters, METH_NOARGS, "counters() -> (recorded, dropped, lost ends, lost in drain, shortened)"},
    {"set_context_reader", set_context_reader, METH_VARARGS, "set_context_reader(reader | None, thread_noter | None)"},
    {"core_api_address", core_api_address, METH_NOARGS, "core_api_address() -> address of the CoreApi table."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int add_recorder(PyObject* module) {
  globals().use_cycle_counter = cycle_counter_is_invariant();
  static const int at_fork = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  if (at_fork != 0) return PyErr_NoMemory(), -1;
  globals().read_stack.store(python_stack_with_gil);
  if (add_column_type(module) < 0 || add_task_entries(module) < 0 || add_record_function_type(module) < 0) return -1;
  if (add_range_observer(module) < 0 || add_python_stack(module) < 0) return -1;
  return PyModule_AddFunctions(module, functions);
}

}  // namespace recfn
