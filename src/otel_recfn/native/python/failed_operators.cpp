// Ranges of PyTorch's that an exception leaves: operators, and PyTorch's own `record_function`.
//
// An exception of C++ that unwinds an operator can't be asked what it is. Only where it stands for
// one of Python's that is still raised in the thread Python knows it.
//
// `record_function.__exit__` gets the exception, but doesn't pass it on. But Python handles it
// meanwhile, as below `except`: an exception that is handled at the end of a range, and wasn't at
// its begin, arose in it.
#include "core/registry.hpp"
#include "cpython/python.hpp"
#include "model/numbers.hpp"
#include "python/failures.hpp"

namespace recfn {
namespace {

// A type and a message, as of other exceptions: _OTHER is OpenTelemetry's for a type that isn't
// known.
constexpr char kUnknownException[] = "_OTHER: C++ exception";

// These read what the calling thread alone writes, so they need no GIL.

bool raises(const PyThreadState& state) {
#if PY_VERSION_HEX >= 0x030C0000
  return state.current_exception != nullptr;
#else
  return state.curexc_type != nullptr;
#endif
}

// Borrowed; null where none is handled.
PyObject* handled_by(const PyThreadState& state) {
  for (const _PyErr_StackItem* item = state.exc_info; item != nullptr; item = item->previous_item) {
    if (item->exc_value != nullptr && item->exc_value != Py_None) return item->exc_value;
  }
  return nullptr;
}

void end_as(ThreadBuffer& buffer, const FailedEnd& failed, uint32_t flags, const Ending& ending) {
  end_range(globals(), buffer, failed.key, failed.begin_thread_id, failed.flags | flags, ending);
}

// With what Python says of the exception; what else is raised in the thread goes on.
void end_by_python(ThreadBuffer& buffer, const FailedEnd& failed, uint64_t ended_at) {
  Reference raised(take_raised());
  PyObject* const exception = failed.is_handled ? handled_by(*PyThreadState_Get()) : raised.get();
  const Reference owned(Py_NewRef(exception));
  end_with_error(owned.get(), [&](PyObject* error, PyObject* stacktrace) {
    const FailureTexts texts(error, stacktrace);
    Ending ending = texts.ending(failed.cpu_time_ns);
    ending.ended_at = ended_at;
    end_as(buffer, failed, texts.flags(), ending);
    return true;
  });
  if (PyObject* const interrupt = take_raised()) raise_in_main_thread(interrupt);
  if (raised) raise_again(raised.release());
}

}  // namespace

uint32_t handled_exception() {
  if (!python_knows_this_thread()) return 0;
  const PyObject* const handled = handled_by(*PyGILState_GetThisThreadState());
  if (handled == nullptr) return 0;
  // As many bits as an entry of the stack has for it, and never 0, which stands for none.
  const uint64_t scrambled = reinterpret_cast<uintptr_t>(handled) * kOddNumber;
  return static_cast<uint32_t>(scrambled >> (64 - OpenEntry::kHandledBits)) | 1;
}

void end_failed(ThreadBuffer& buffer, const FailedEnd& failed) {
  Ending ending;
  ending.cpu_time_ns = failed.cpu_time_ns;
  ending.ended_at = read_ticks(globals().use_cycle_counter);
  // Recording stops before the interpreter ends, from when on no thread may take the GIL.
  if ((globals().recording.load() & kRecordingBit) == 0) return end_as(buffer, failed, 0, ending);
  const bool is_known = python_knows_this_thread();
  if (failed.is_handled || (is_known && raises(*PyGILState_GetThisThreadState()))) {
    const PyGILState_STATE gil = PyGILState_Ensure();
    end_by_python(buffer, failed, ending.ended_at);
    PyGILState_Release(gil);
    return;
  }
  ending.error = {kUnknownException, sizeof kUnknownException - 1};
  end_as(buffer, failed, kError, ending);
}

}  // namespace recfn
