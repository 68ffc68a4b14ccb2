// The looks of our sampling thread in Python, which sources/python_samples.py describes.
#include <algorithm>
#include <mutex>
#include <random>
#include <string>
#include <time.h>
#include <utility>
#include <vector>

#include "columns/fields.hpp"
#include "core/drain_waker.hpp"
#include "core/thread_clocks.hpp"
#include "cpython/collections.hpp"
#include "cpython/python.hpp"
#include "drain/drain.hpp"

namespace recfn {
namespace {

constexpr auto kPeriodNs = static_cast<uint64_t>(kLookPeriodNs);

RowRecordType<QuietThread> quiet_type;

DrainWaker& looks_waker() {
  static auto* const instance = new DrainWaker;  // never destroyed: the thread may outlive statics
  return *instance;
}

// Used by the sampling thread alone.
ThreadClocks& thread_clocks() {
  static auto* const instance = new ThreadClocks;
  return *instance;
}

// What clocks say of a quiet thread, if they were read since it is there, or at the look before.
void note_work(QuietThread& quiet, ThreadClocks& clocks) {
  ThreadClocks::Clock* const own = clocks.find(quiet.native_id);
  const int64_t longest_ns = quiet.quiet_ns + quiet.duration_ns + kLookPeriodNs / 2;
  const bool is_recent = clocks.interval_ns() <= longest_ns;
  if (own == nullptr || own->worked_ns == ThreadClocks::kUnknown || !is_recent) return;
  quiet.interval_ns = clocks.interval_ns();
  quiet.worked_ns = own->worked_ns;
  quiet.coreless_ns = std::max<int64_t>(0, clocks.coreless_ns(*own));
  int64_t most_ns = 0;
  for (const ThreadClocks::Clock& other : clocks.clocks()) {
    if (other.native_id == quiet.native_id || other.worked_ns <= 0) continue;
    quiet.others_ns += other.worked_ns;
    if (other.worked_ns <= most_ns) continue;
    most_ns = other.worked_ns;
    quiet.busiest = other.native_id;
  }
}

// The time until the next look. It isn't always the same: the frames of a thread are often read
// where it gives the GIL back, and from there a program that repeats itself would be at the same
// place after the same time, so that samples found nothing else.
uint64_t next_pause_ns() {
  thread_local std::minstd_rand random;
  return kPeriodNs / 2 + random() % kPeriodNs;
}

std::vector<QuietThread> look(uint64_t pause_ns) {
  std::vector<QuietThread> found;
  const auto looks = [&found, pause_ns] {
    const std::lock_guard lock(drain().mutex());
    return drain().look(found, static_cast<int64_t>(pause_ns));
  };
  if (looks() && !found.empty()) {
    const timespec quiet{0, kQuietNs};
    nanosleep(&quiet, nullptr);
    const std::lock_guard lock(drain().mutex());
    drain().remove_busy(found);
  }
  if (found.empty()) return found;
  thread_clocks().read();
  for (QuietThread& thread : found) note_work(thread, thread_clocks());
  return found;
}

PyObject* begin_looks(PyObject*, PyObject*) {
  const bool done = without_gil([] {
    const std::lock_guard lock(drain().mutex());
    drain().begin_looks();
  });
  return done ? Py_NewRef(Py_None) : nullptr;
}

PyObject* wait_for_quiet(PyObject*, PyObject* argument) {
  const double seconds = PyFloat_AsDouble(argument);
  if (seconds == -1 && PyErr_Occurred() != nullptr) return nullptr;
  prepare_for_exceptions();
  std::vector<QuietThread> quiet;
  const bool done = without_gil([&quiet, seconds] {
    const auto looks = static_cast<uint64_t>(std::max(0.0, seconds) * 1e9) / kPeriodNs;
    for (uint64_t left = looks; quiet.empty() && left > 0; --left) {
      const uint64_t pause_ns = next_pause_ns();
      if (looks_waker().wait(pause_ns)) return;
      quiet = look(pause_ns);
    }
  });
  return done ? quiet_type.list(quiet) : nullptr;
}

PyObject* wake_looks(PyObject*, PyObject*) {
  looks_waker().wake();
  Py_RETURN_NONE;
}

// CPython takes the lock of its threads for this, and makes the frames' objects under it. If that
// collected garbage, and a threading.local was in it, CPython would take the lock once more, with
// the GIL: the program would stop for good.
PyObject* current_frames(PyObject*, PyObject*) {
  PyObject* const function = PySys_GetObject("_current_frames");
  if (function == nullptr) {
    PyErr_SetString(PyExc_AttributeError, "this Python has no sys._current_frames");
    return nullptr;
  }
  const WithoutCollections now;
  return PyObject_CallNoArgs(function);
}

PyObject* add_sample(PyObject*, PyObject* args, PyObject* keywords) {
  static const char* const names[] = {"thread_number", "position", "duration_ns", "name",
                                      "waits_for",     "item",     nullptr};
  unsigned long long number, position;
  long long duration_ns;
  PyObject *name, *waits_for, *item;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "$KKLUUU:add_sample", const_cast<char**>(names),
                                   &number, &position, &duration_ns, &name, &waits_for, &item)) {
    return nullptr;
  }
  const Utf8Text name_text(name), waits_for_text(waits_for), item_text(item);
  for (const Utf8Text* text : {&name_text, &waits_for_text, &item_text}) {
    if (text->text().data() == nullptr) return nullptr;
  }
  prepare_for_exceptions();
  const bool done = without_gil([&] {
    NewSample sample{position,
                     0,
                     duration_ns,
                     std::string(name_text.text()),
                     std::string(waits_for_text.text()),
                     std::string(item_text.text())};
    const std::lock_guard lock(drain().mutex());
    drain().add_sample(number, std::move(sample));
  });
  return done ? Py_NewRef(Py_None) : nullptr;
}

PyMethodDef sampling_functions[] = {
    {"begin_looks", begin_looks, METH_NOARGS,
     "begin_looks(): threads are looked at once they have recorded something from here on."},
    {"wait_for_quiet", wait_for_quiet, METH_O,
     "wait_for_quiet(seconds) -> the threads that recorded nothing for a millisecond, as "
     "QuietThread"
     "; looks 50 times a second until there are any, wake_looks() is called, or the time is over."},
    {"wake_looks", wake_looks, METH_NOARGS, "wake_looks(): end such a wait."},
    {"current_frames", current_frames, METH_NOARGS,
     "current_frames() -> what sys._current_frames() gives, without a garbage collection in it."},
    {"add_sample", with_keywords(add_sample), METH_VARARGS | METH_KEYWORDS,
     "add_sample(*, thread_number, position, duration_ns, name, waits_for, item)\n--\n\n"
     "What a quiet thread runs now, what it waits for (empty if it works), and the index of the "
     "item that a DataLoader makes there."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int add_sampling(PyObject* module) {
  if (!quiet_type.add_to(module, "otel_recfn._native.QuietThread",
                         "A thread that has recorded nothing for a millisecond.")) {
    return -1;
  }
  return PyModule_AddFunctions(module, sampling_functions);
}

}  // namespace recfn
