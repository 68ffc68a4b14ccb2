// Entering and leaving a `record_function` object.
#include <algorithm>
#include <iterator>

#include "core/globals.hpp"
#include "core/registry.hpp"
#include "python/arguments.hpp"
#include "python/failures.hpp"
#include "python/python_stack.hpp"
#include "python/record_function.hpp"

namespace recfn {
namespace {

// --- who sees the ranges instead of the recorder, and which of them it leaves to the recorder all
// the same

// (name, args, flags) -> a handle with event_id and end(error); see recording/ranges.py.
PyObject* observer = nullptr;

uint64_t observer_version = 0;

// Of the calling thread; they count while `version` is the observer's.
struct Unobserved {
  uint64_t ranges;
  uint64_t version;
};
thread_local Unobserved unobserved RECFN_FAST_TLS = {0, 0};

PyObject* set_range_observer(PyObject*, PyObject* args) {
  PyObject* wanted;
  unsigned long long version;
  if (!PyArg_ParseTuple(args, "OK", &wanted, &version)) return nullptr;
  PyObject* before = observer;
  observer = wanted != Py_None ? Py_NewRef(wanted) : nullptr;
  observer_version = version;
  if (observer != nullptr) {
    globals().recording.fetch_or(kObservedBit);
  } else {
    globals().recording.fetch_and(~kObservedBit);
  }
  Py_XDECREF(before);
  Py_RETURN_NONE;
}

PyObject* range_observer(PyObject*, PyObject*) {
  return Py_NewRef(observer != nullptr ? observer : Py_None);
}

uint64_t remaining_ranges() {
  return unobserved.version == observer_version ? unobserved.ranges : 0;
}

PyObject* leave_unobserved(PyObject*, PyObject* args) {
  unsigned long long ranges, version;
  if (!PyArg_ParseTuple(args, "KK", &ranges, &version)) return nullptr;
  if (version != observer_version) ranges = 0;
  unobserved = {remaining_ranges() + ranges, observer_version};
  return PyLong_FromUnsignedLongLong(ranges);
}

PyObject* take_back_unobserved(PyObject*, PyObject*) {
  const uint64_t left = remaining_ranges();
  unobserved.ranges = 0;
  return PyLong_FromUnsignedLongLong(left);
}

PyMethodDef observer_functions[] = {
    {"set_range_observer", set_range_observer, METH_VARARGS,
     "set_range_observer(observer | None, version)"},
    {"range_observer", range_observer, METH_NOARGS, "range_observer() -> what was set, or None"},
    {"leave_unobserved", leave_unobserved, METH_VARARGS,
     "leave_unobserved(ranges, version) -> how many are left unobserved"},
    {"take_back_unobserved", take_back_unobserved, METH_NOARGS,
     "take_back_unobserved() -> how many of them have not begun"},
    {nullptr, nullptr, 0, nullptr}};

// Whether the calling thread's next range, which begins now, is one that is left unobserved.
bool begins_unobserved() {
  if (remaining_ranges() == 0) return false;
  --unobserved.ranges;
  return true;
}

// Hands a range to the observer, which must be set, and may be replaced while it is called: it is
// held meanwhile. Returns its handle, or null with the exception set.
PyObject* observe_range(const RecordFunctionObject& range) {
  const Reference called(Py_NewRef(observer));
  return range.code != nullptr
             ? PyObject_CallFunction(called.get(), "OOiO", range.name, range.args, 0, range.code)
             : PyObject_CallFunction(called.get(), "OOis", range.name, range.args, 0, "");
}

// --- how a range begins

RangeEntry begin_named(PyObject* name, const OptionalPrelude* optional) {
  Globals& shared = globals();
  ThreadBuffer* buffer = registry().current();
  if (buffer == nullptr) {
    shared.dropped_without_buffer.fetch_add(1, std::memory_order_relaxed);
    return RangeEntry{};
  }
  const Utf8 text(name, kMaxNameBytes);
  Begin range;
  range.name = text.text();
  range.scope = kUserScope;
  range.flags = kRecordFunctionSource << kSourceShift;
  range.prelude.optional = optional;
  RangeEntry entry{begin_range<false>(shared, *buffer, range, true), 0, nullptr, nullptr};
  if (entry.event_id != 0) {
    entry.in_task = enter_range(*buffer, entry.event_id, kUserScope, kRecordFunctionSource);
  }
  return entry;
}

[[gnu::noinline]] RangeEntry begin_with_texts(const RecordFunctionObject& range, bool with_stack) {
  char stack[kMaxStackBytes];
  const Utf8 code(range.code, kMaxNameBytes);
  OptionalPrelude optional;
  if (with_stack) optional.texts[kCallStack] = {stack, python_stack(stack, sizeof stack)};
  optional.texts[kCalledCode] = code.text();
  return begin_named(range.name, &optional);
}

RangeEntry begin_recorded(const RecordFunctionObject& range, uint32_t recording) {
  const bool with_stack = (recording & kStackBit) != 0;
  if (__builtin_expect(with_stack || range.code != nullptr, 0)) {
    return begin_with_texts(range, with_stack);
  }
  return begin_named(range.name, nullptr);
}

uint64_t this_thread() { return PyThread_get_thread_ident(); }

[[gnu::noinline]] bool store_earlier(RecordFunctionObject& range) {
  const bool is_stored = had_memory_for([&range] {
    if (range.earlier == nullptr) range.earlier = new std::vector<RangeEntry>;
    range.earlier->push_back(range.newest);
  });
  if (!is_stored) PyErr_NoMemory();
  return is_stored;
}

bool push_entry(RecordFunctionObject& range, const RangeEntry& entry) {
  if (range.entered > 0 && !store_earlier(range)) return false;
  ++range.entered;
  range.newest = entry;
  return true;
}

[[gnu::noinline]] PyObject* enter_observed(PyObject* self) {
  RecordFunctionObject* range = as_range(self);
  PyObject* handle = observe_range(*range);
  if (handle == nullptr) return nullptr;
  if (!push_entry(*range, {0, this_thread(), handle, nullptr})) {
    Py_DECREF(handle);
    return nullptr;
  }
  return Py_NewRef(self);
}

// The newest entry of this thread; where it has none, the newest of all: a range may be left on
// another thread.
RangeEntry take_entry(RecordFunctionObject& range) {
  RangeEntry taken = range.newest;
  if (--range.entered == 0) return taken;
  std::vector<RangeEntry>& earlier = *range.earlier;
  const uint64_t thread = this_thread();
  const auto is_here = [thread](const RangeEntry& entry) { return entry.thread == thread; };
  const auto mine = std::find_if(earlier.rbegin(), earlier.rend(), is_here);
  if (taken.thread != thread && mine != earlier.rend()) {
    taken = *mine;
    earlier.erase(std::next(mine).base());
  } else {
    range.newest = earlier.back();
    earlier.pop_back();
  }
  return taken;
}

bool call_end(PyObject* handle, PyObject* error, PyObject* stacktrace) {
  PyObject* result = error != nullptr ? PyObject_CallMethod(handle, "end", "OO", error, stacktrace)
                                      : PyObject_CallMethod(handle, "end", nullptr);
  Py_XDECREF(result);
  return result != nullptr;
}

[[gnu::noinline]] PyObject* exit_observed(PyObject* handle, PyObject* exception) {
  const auto end = [handle](PyObject* error, PyObject* stacktrace) {
    return call_end(handle, error, stacktrace);
  };
  const bool ended = exception == nullptr ? end(nullptr, nullptr) : end_with_error(exception, end);
  Py_DECREF(handle);
  return ended ? Py_NewRef(Py_None) : nullptr;
}

}  // namespace

PyObject* range_enter(PyObject* self, PyObject*) {
  const uint32_t recording = globals().recording.load(std::memory_order_acquire);
  if (__builtin_expect((recording & kObservedBit) != 0, 0) && !begins_unobserved()) {
    return enter_observed(self);
  }
  RangeEntry entry =
      selects(recording, kUserScope) ? begin_recorded(*as_range(self), recording) : RangeEntry{};
  entry.thread = this_thread();
  if (!push_entry(*as_range(self), entry)) {
    forget(entry);
    return nullptr;
  }
  return Py_NewRef(self);
}

PyObject* range_exit(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  RecordFunctionObject* range = as_range(self);
  if (range->entered == 0) Py_RETURN_NONE;
  const RangeEntry entry = take_entry(*range);
  PyObject* exception = count > 1 && args[1] != Py_None ? args[1] : nullptr;
  if (__builtin_expect(entry.handle != nullptr, 0)) return exit_observed(entry.handle, exception);
  ThreadBuffer* buffer = entry.event_id != 0 ? registry().current() : nullptr;
  const RangeEnd left = leave_range(entry.in_task, buffer);
  if (buffer == nullptr) Py_RETURN_NONE;
  if (exception == nullptr) {
    end_range(globals(), *buffer, entry.event_id, 0, left.flags, {left.cpu_time_ns, left.at});
    Py_RETURN_NONE;
  }
  const bool ended =
      end_with_error(exception, [buffer, &entry, left](PyObject* error, PyObject* stacktrace) {
        const FailureTexts texts(error, stacktrace);
        const uint32_t failed = error == nullptr ? uint32_t{kError} : texts.flags();
        end_range(globals(), *buffer, entry.event_id, 0, left.flags | failed,
                  texts.ending(left.cpu_time_ns));
        return true;
      });
  return ended ? Py_NewRef(Py_None) : nullptr;
}

PyObject* call_enter(PyObject* bound, PyObject* const*, size_t count, PyObject* keywords) {
  if (__builtin_expect(PyVectorcall_NARGS(count) != 0 || keywords != nullptr, 0)) {
    return PyErr_Format(PyExc_TypeError, "record_function.__enter__() takes no arguments");
  }
  return range_enter(owner_of(bound), nullptr);
}

PyObject* call_exit(PyObject* bound, PyObject* const* args, size_t count, PyObject* keywords) {
  if (__builtin_expect(PyVectorcall_NARGS(count) == 3 && keywords == nullptr, 1)) {
    return range_exit(owner_of(bound), args, 3);
  }
  return PyErr_Format(
      PyExc_TypeError,
      "record_function.__exit__() takes a type, an error and a traceback, or None for each");
}

int add_range_observer(PyObject* module) {
  return PyModule_AddFunctions(module, observer_functions);
}

}  // namespace recfn
