#include "python/python_stack.hpp"

#include <cstdio>
#include <cstring>
#include <string>

#include "cpython/python.hpp"

namespace recfn {

std::string (*call_site_now)() = nullptr;

namespace {

std::string& own_directory() {
  static auto* directory = new std::string;
  return *directory;
}

bool is_own(const char* file) {
  const std::string& own = own_directory();
  return !own.empty() && std::strncmp(file, own.data(), own.size()) == 0;
}

const char* utf8(PyObject* text) {
  const char* data = PyUnicode_AsUTF8(text);
  if (data == nullptr) PyErr_Clear();  // a lone surrogate, say in the name of a file
  return data != nullptr ? data : "?";
}

// Adds the frame's line, unless the frame is our own, to what is `used` of the text. False when there is no room for it.
bool put_frame(PyFrameObject* frame, char* text, uint32_t size, uint32_t& used) {
  PyCodeObject* code = PyFrame_GetCode(frame);
  const char* file = utf8(code->co_filename);
  const uint32_t room = size - used;
  int wanted = 0;
  if (!is_own(file)) {
    wanted = std::snprintf(text + used, room, "%s(%d): %s\n", file, PyFrame_GetLineNumber(frame), utf8(code->co_name));
  }
  Py_DECREF(code);
  if (wanted < 0 || static_cast<uint32_t>(wanted) >= room) return false;
  used += static_cast<uint32_t>(wanted);
  return true;
}

PyObject* set_own_directory(PyObject*, PyObject* directory) {
  const char* path = PyUnicode_AsUTF8(directory);
  if (path == nullptr) return nullptr;
  return guarded([path] {
    own_directory() = path;
    return Py_NewRef(Py_None);
  });
}

PyMethodDef stack_functions[] = {
    {"set_own_directory", set_own_directory, METH_O, "set_own_directory(path): frames of files below it are left out of stacks."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

uint32_t python_stack(char* text, uint32_t size) {
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

uint32_t python_stack_with_gil(char* text, uint32_t size) {
  if (!python_knows_this_thread()) return 0;
  const WithGil python;
  return python_stack(text, size);
}

int add_python_stack(PyObject* module) { return PyModule_AddFunctions(module, stack_functions); }

}  // namespace recfn
