// The calling thread's Python stack as text.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

#include "cpython/python.hpp"

namespace recfn {

// While traced calls say which line called them: that line, for what begins now. Else null. The GIL
// must be held.
inline std::string (*call_site_now)() = nullptr;

// Frames of files below it are left out.
inline std::string& own_directory() {
  static auto* directory = new std::string;
  return *directory;
}

// Adds the frame's line, unless the frame is our own, to what is `used` of the text. False when
// there is no room for it.
inline bool put_frame(PyFrameObject* frame, char* text, uint32_t size, uint32_t& used) {
  const auto utf8 = [](PyObject* name) {
    const char* data = PyUnicode_AsUTF8(name);
    if (data == nullptr) PyErr_Clear();  // a lone surrogate, say in the name of a file
    return data != nullptr ? data : "?";
  };
  const Reference owned(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
  const auto* code = reinterpret_cast<PyCodeObject*>(owned.get());
  const char* file = utf8(code->co_filename);
  const std::string& own = own_directory();
  if (!own.empty() && std::strncmp(file, own.data(), own.size()) == 0) return true;
  const uint32_t room = size - used;
  const int wanted = std::snprintf(text + used, room, "%s(%d): %s\n", file,
                                   PyFrame_GetLineNumber(frame), utf8(code->co_name));
  if (wanted < 0 || static_cast<uint32_t>(wanted) >= room) return false;
  used += static_cast<uint32_t>(wanted);
  return true;
}

// One "file(line): function" a line, innermost first. Whole lines only, at most `size` bytes.
// Returns the bytes written. The GIL must be held.
inline uint32_t python_stack(char* text, uint32_t size) {
  uint32_t used = 0;
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  while (frame != nullptr && put_frame(frame, text, size, used)) {
    PyFrameObject* caller = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = caller;
  }
  Py_XDECREF(frame);
  return used > 0 ? used - 1 : 0;  // without the last line's end
}

// The same for threads that don't hold the GIL; nothing in threads that Python doesn't know.
inline uint32_t python_stack_with_gil(char* text, uint32_t size) {
  if (!python_knows_this_thread()) return 0;
  const WithGil python;
  return python_stack(text, size);
}

}  // namespace recfn
