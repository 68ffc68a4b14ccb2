// Removes hidden files when SIGTERM ends the process, then lets SIGTERM do what it does by default.
//
// All that the handler calls is async-signal-safe. It is installed only in place of the default action, so a program's own
// handler is never replaced; one that the program installs later takes its place. A file goes only if it is one of the two known.
#include "module/sigterm.hpp"

#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>
#include <sys/stat.h>
#include <unistd.h>

namespace {

constexpr int kPlaces = 32;

struct Place {
  std::atomic<pid_t> pid{0};  // 0: free; a forked child's copies of its parent's places are free too
  dev_t device[2];
  ino_t inode[2];
  char path[PATH_MAX];
};

Place places[kPlaces];

void remove_file(const Place& place) {
  struct stat status;
  if (lstat(place.path, &status) != 0) return;
  for (int known = 0; known < 2; ++known) {
    if (status.st_dev == place.device[known] && status.st_ino == place.inode[known]) {
      unlink(place.path);
      return;
    }
  }
}

void on_sigterm(int number) {
  const int error = errno;
  const pid_t self = getpid();
  for (const Place& place : places) {
    if (place.pid.load(std::memory_order_acquire) == self) remove_file(place);
  }
  signal(number, SIG_DFL);
  raise(number);  // pending until this handler returns
  errno = error;
}

// The default action of SIGTERM does not end process 1 of a container, so nothing may be removed there.
void install() {
  struct sigaction present;
  if (getpid() == 1 || sigaction(SIGTERM, nullptr, &present) != 0) return;
  if ((present.sa_flags & SA_SIGINFO) != 0 || present.sa_handler != SIG_DFL) return;
  struct sigaction ours;
  std::memset(&ours, 0, sizeof ours);
  ours.sa_handler = on_sigterm;
  ours.sa_flags = SA_RESTART | SA_ONSTACK;
  sigemptyset(&ours.sa_mask);
  sigaction(SIGTERM, &ours, nullptr);
}

void uninstall() {
  struct sigaction present;
  if (sigaction(SIGTERM, nullptr, &present) != 0) return;
  if ((present.sa_flags & SA_SIGINFO) == 0 && present.sa_handler == on_sigterm) signal(SIGTERM, SIG_DFL);
}

int free_place(pid_t self) {
  for (int index = 0; index < kPlaces; ++index) {
    if (places[index].pid.load(std::memory_order_relaxed) != self) return index;
  }
  return -1;
}

PyObject* remove_at_sigterm(PyObject*, PyObject* arguments) {
  const char* path;
  Py_ssize_t length;
  unsigned long long devices[2], inodes[2];
  if (!PyArg_ParseTuple(arguments, "y#KKKK", &path, &length, &devices[0], &inodes[0], &devices[1], &inodes[1])) return nullptr;
  const pid_t self = getpid();
  const int index = length < PATH_MAX ? free_place(self) : -1;
  if (index < 0) return PyLong_FromLong(-1);
  Place& place = places[index];
  place.pid.store(0, std::memory_order_release);
  std::memcpy(place.path, path, static_cast<size_t>(length) + 1);
  for (int known = 0; known < 2; ++known) {
    place.device[known] = static_cast<dev_t>(devices[known]);
    place.inode[known] = static_cast<ino_t>(inodes[known]);
  }
  place.pid.store(self, std::memory_order_release);
  install();
  return PyLong_FromLong(index);
}

PyObject* keep_at_sigterm(PyObject*, PyObject* argument) {
  const long index = PyLong_AsLong(argument);
  if (index == -1 && PyErr_Occurred()) return nullptr;
  const pid_t self = getpid();
  if (index >= 0 && index < kPlaces && places[index].pid.load(std::memory_order_relaxed) == self) {
    places[index].pid.store(0, std::memory_order_release);
  }
  for (const Place& place : places) {
    if (place.pid.load(std::memory_order_relaxed) == self) Py_RETURN_NONE;
  }
  uninstall();
  Py_RETURN_NONE;
}

PyMethodDef sigterm_functions[] = {
    {"remove_at_sigterm", remove_at_sigterm, METH_VARARGS,
     "remove_at_sigterm(path, device, inode, device, inode) -> int\n\n"
     "Where SIGTERM has its default action, let it remove this path too, if it is one of two files; a place, or -1."},
    {"keep_at_sigterm", keep_at_sigterm, METH_O, "keep_at_sigterm(place) -> None\n\nTake that back."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int recfn::add_sigterm(PyObject* module) { return PyModule_AddFunctions(module, sigterm_functions); }
