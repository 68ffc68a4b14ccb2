// The looks of our sampling thread in Python, which sources/python_samples.py describes.
#include <algorithm>
#include <mutex>
#include <string>
#include <time.h>
#include <utility>
#include <vector>

#include "columns/fields.hpp"
#include "core/drain_waker.hpp"
#include "cpython/python.hpp"
#include "drain/drain.hpp"

namespace recfn {
namespace {

constexpr auto kPeriodNs = static_cast<uint64_t>(kLookPeriodNs);
constexpr long kQuietNs = 1'000'000;

RowRecordType<QuietThread> quiet_type;

DrainWaker& looks_waker() {
  static auto* const instance = new DrainWaker;  // never destroyed: the thread may outlive statics
  return *instance;
}

std::vector<QuietThread> look() {
  {
    const std::lock_guard lock(drain().mutex());
    drain().begin_look();
  }
  const timespec quiet{0, kQuietNs};
  nanosleep(&quiet, nullptr);
  const std::lock_guard lock(drain().mutex());
  return drain().end_look();
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
      if (looks_waker().wait(kPeriodNs)) return;
      quiet = look();
    }
  });
  return done ? quiet_type.list(quiet) : nullptr;
}

PyObject* wake_looks(PyObject*, PyObject*) {
  looks_waker().wake();
  Py_RETURN_NONE;
}

PyObject* add_sample(PyObject*, PyObject* args) {
  unsigned long long number, position;
  long long duration_ns;
  PyObject* name;
  if (!PyArg_ParseTuple(args, "KKLU", &number, &position, &duration_ns, &name)) return nullptr;
  const Utf8Text text(name);
  if (text.text().data() == nullptr) return nullptr;
  prepare_for_exceptions();
  const bool done = without_gil([&] {
    NewSample sample{position, read_ticks(globals().use_cycle_counter), duration_ns,
                     std::string(text.text())};
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
    {"add_sample", add_sample, METH_VARARGS,
     "add_sample(thread number, position, duration_ns, name): what a quiet thread runs now."},
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
