// The way from an operator's thread into Python: only while the interpreter lives, only into the main one, and leaving no trace.
//
// Taking the GIL while the interpreter finalizes ends the thread or hangs it. So each entry passes a door first. An atexit handler
// closes it before finalization begins, and waits for those who are inside.
#pragma once
#include <Python.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

#include "cpython/gil.hpp"
#include "cpython/interpreters.hpp"

namespace recfn {

class Door {
 public:
  // Whether Python may be entered; if so, `leave` must follow.
  bool enter() {
    if (in_subinterpreter()) return false;
    inside_.fetch_add(1);
    if (!closed_.load()) return true;
    leave();
    return false;
  }

  void leave() { inside_.fetch_sub(1); }

  // Nobody enters any more. Waits, without the GIL, for those who are inside, but no longer than this, so that a callback that
  // doesn't return can't hold up the exit of the program.
  void close(int own) {
    closed_.store(true);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(2);
    while (inside_.load() > own && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  }

  // In a forked child, where only the forking thread may be inside.
  void only(int own) { inside_.store(own); }

 private:
  std::atomic<bool> closed_{false};
  std::atomic<int> inside_{0};
};

inline Door& door() {
  static auto* instance = new Door;
  return *instance;
}

// Whether Python may be entered, and is, in this scope.
class PythonEntry {
 public:
  PythonEntry() {
    if (door().enter()) python_.emplace();
  }
  ~PythonEntry() {
    if (!python_) return;
    python_.reset();
    door().leave();
  }

  PythonEntry(const PythonEntry&) = delete;
  PythonEntry& operator=(const PythonEntry&) = delete;

  explicit operator bool() const { return python_.has_value(); }

 private:
  std::optional<WithGil> python_;
};

// A reference that its owner, who holds the GIL, drops.
class Reference {
 public:
  Reference() = default;
  explicit Reference(PyObject* owned) : object_(owned) {}
  Reference(Reference&& other) noexcept : object_(other.release()) {}
  Reference& operator=(Reference&& other) noexcept {
    PyObject* before = object_;
    object_ = other.release();
    Py_XDECREF(before);
    return *this;
  }
  ~Reference() { Py_XDECREF(object_); }

  // A reference of its own; null for None.
  static Reference unless_none(PyObject* object) { return Reference(object == Py_None ? nullptr : Py_NewRef(object)); }

  PyObject* get() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }
  PyObject* release() {
    PyObject* object = object_;
    object_ = nullptr;
    return object;
  }

 private:
  PyObject* object_ = nullptr;
};

}  // namespace recfn
