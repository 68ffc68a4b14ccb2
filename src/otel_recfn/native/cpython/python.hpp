// Python.h, as everything here includes it.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <frameobject.h>

#include <new>
#include <stdexcept>
#include <string_view>
#include <utility>

#ifdef Py_GIL_DISABLED
#error "otel-recfn needs a GIL, which guards its state, and this CPython is free-threaded"
#endif

namespace recfn {

// Does the work; false where there was no memory for it.
template <typename Work>
bool had_memory_for(Work work) {
  try {
    work();
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  } catch (const std::length_error&) {  // more than any memory holds
    return false;
  }
}

// Calls a function that gives an object; memory that is missing is Python's error.
template <typename Function>
PyObject* guarded(Function function) {
  PyObject* result = nullptr;
  return had_memory_for([&] { result = function(); }) ? result : PyErr_NoMemory();
}

// Calls work(), which needs no Python, without the GIL where it is long. Short work keeps it: where
// other threads compute in Python, it takes 5 ms for each to get it back. False, with the error
// set, when memory ran out in it.
template <typename Work>
bool without_gil_if(bool is_long, Work work) {
  PyThreadState* const state = is_long ? PyEval_SaveThread() : nullptr;
  const bool done = had_memory_for(work);
  if (state != nullptr) PyEval_RestoreThread(state);
  if (!done) PyErr_NoMemory();
  return done;
}

template <typename Work>
bool without_gil(Work work) {
  return without_gil_if(true, work);
}

// Python may be used in this scope: the GIL is held, and an exception that the thread was raising
// is put aside and restored.
class WithGil {
 public:
  WithGil() : gil_(PyGILState_Ensure()) { PyErr_Fetch(&type_, &value_, &traceback_); }
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;
  ~WithGil() {
    PyErr_Restore(type_, value_, traceback_);
    PyGILState_Release(gil_);
  }

 private:
  const PyGILState_STATE gil_;
  PyObject *type_ = nullptr, *value_ = nullptr, *traceback_ = nullptr;
};

// Whether the calling thread works for a subinterpreter, whose GIL is another one: taking ours
// there would wait for ever, or enter the wrong interpreter. Needs no GIL.
inline bool in_subinterpreter() {
  PyInterpreterState* const main = PyInterpreterState_Main();
  if (PyInterpreterState_Head() == main) {
    // The newest stands first: there are no others.
    return false;
  }
  PyThreadState* own = PyGILState_GetThisThreadState();
#if PY_VERSION_HEX < 0x030C0000
  // `own` is the first one that the thread had, which may run another one now. `running` belongs to
  // whichever thread has the GIL.
  PyThreadState* const running = _PyThreadState_UncheckedGet();
  if (running != nullptr && running->thread_id == PyThread_get_thread_ident()) own = running;
#endif
  return own != nullptr && PyThreadState_GetInterpreter(own) != main;
}

// Whether the calling thread may take the GIL: Python knows it, as one of the main interpreter's.
inline bool python_knows_this_thread() {
  return PyGILState_GetThisThreadState() != nullptr && !in_subinterpreter();
}

// Owns a reference, or null, which says that there is no object: where one was to be made, that
// failed. The GIL must be held.
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
  static Reference unless_none(PyObject* object) {
    return Reference(object == Py_None ? nullptr : Py_NewRef(object));
  }

  PyObject* get() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }
  PyObject* release() { return std::exchange(object_, nullptr); }

 private:
  PyObject* object_ = nullptr;
};

// Bytes that are no UTF-8 are replaced.
inline PyObject* to_text(std::string_view utf8) {
  return PyUnicode_DecodeUTF8(utf8.data(), static_cast<Py_ssize_t>(utf8.size()), "replace");
}

// A list of what `make` makes of each item.
template <typename Items, typename Make>
PyObject* list_of(const Items& items, Make make) {
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(items.size()));
  for (size_t i = 0; list != nullptr && i < items.size(); ++i) {
    PyObject* const made = make(items[i]);
    if (made == nullptr || PyList_SetItem(list, static_cast<Py_ssize_t>(i), made) < 0) {
      Py_CLEAR(list);
    }
  }
  return list;
}

// A type that needs no more than a name and a size; what else it has is for whoever asks to set.
inline PyTypeObject type_of_size(const char* name, size_t size) {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = name;
  type.tp_basicsize = static_cast<Py_ssize_t>(size);
  type.tp_flags = Py_TPFLAGS_DEFAULT;
  return type;
}

// A function that takes its arguments by name too, for a method table (METH_VARARGS |
// METH_KEYWORDS).
inline PyCFunction with_keywords(PyCFunctionWithKeywords function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function));
}

// A string as UTF-8: without a copy where Python holds it already. Lone surrogates, which have no
// UTF-8, are escaped.
class Utf8Text {
 public:
  // Without a string, or with an error set, the text has no data.
  [[gnu::always_inline]] explicit Utf8Text(PyObject* string) {
    if (string == nullptr) return;
    // Most names are ASCII. Read here they cost a range four nanoseconds less than by the call.
    if (PyUnicode_Check(string) && PyUnicode_IS_COMPACT_ASCII(string)) {
      text_ = {static_cast<const char*>(PyUnicode_DATA(string)),
               static_cast<size_t>(PyUnicode_GET_LENGTH(string))};
      return;
    }
    Py_ssize_t size = 0;
    const char* const data = PyUnicode_AsUTF8AndSize(string, &size);
    text_ = {data, static_cast<size_t>(size)};
    if (__builtin_expect(data == nullptr, 0)) escape(string);
  }

  std::string_view text() const { return text_; }

 private:
  [[gnu::noinline]] void escape(PyObject* string) {
    if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) return;
    PyErr_Clear();
    escaped_ = Reference(PyUnicode_AsEncodedString(string, "utf-8", "backslashreplace"));
    if (escaped_) {
      text_ = {PyBytes_AS_STRING(escaped_.get()),
               static_cast<size_t>(PyBytes_GET_SIZE(escaped_.get()))};
    }
  }

  std::string_view text_;
  Reference escaped_;
};

// What is being raised, as one object with its traceback; null where nothing is. Nothing is raised
// any more.
inline PyObject* take_raised() {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  if (type == nullptr) return nullptr;
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback != nullptr) PyException_SetTraceback(value, traceback);
  Py_DECREF(type);
  Py_XDECREF(traceback);
  return value;
}

// Raises what was taken, and takes the reference to it.
inline void raise_again(PyObject* raised) {
  PyErr_Restore(Py_NewRef(Py_TYPE(raised)), raised, PyException_GetTraceback(raised));
}

inline int raise_taken(void* taken) {
  auto* raised = static_cast<PyObject*>(taken);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised)), raised);
  Py_DECREF(raised);
  return -1;
}

// An operator can't pass on what was raised in the program while it ran (KeyboardInterrupt, or by
// another signal handler): the main thread's next Python instruction does. Takes it.
inline void raise_in_main_thread(PyObject* raised) {
  if (Py_AddPendingCall(raise_taken, raised) < 0) Py_DECREF(raised);
}

}  // namespace recfn
