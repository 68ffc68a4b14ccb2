#include "otlp/otlp_fragments.hpp"

#include "otlp/field_tags.hpp"
#include "otlp/wire_writer.hpp"

namespace recfn {

bool OtlpFragments::make(PyObject* names, PyObject* maker) {
  made_.reserve(needed_.size());
  for (const Need& need : needed_) {
    const size_t begin = memory_.size();
    bool good;
    if (need.kind == kNameField) {
      PyObject* name = PySequence_GetItem(names, static_cast<Py_ssize_t>(need.index));
      good = name != nullptr && append_name(name);
      Py_XDECREF(name);
    } else {
      PyObject* bytes = PyObject_CallFunction(maker, "II", static_cast<unsigned>(need.kind), need.index);
      good = bytes != nullptr && append_bytes(bytes);
      Py_XDECREF(bytes);
    }
    if (!good) return false;
    made_.push_back({begin, memory_.size() - begin});
  }
  pad();
  return true;
}

bool OtlpFragments::take_told(PyObject* told) {
  PyObject *row, *bytes;
  for (Py_ssize_t position = 0; PyDict_Next(told, &position, &row, &bytes);) {
    const int64_t number = PyLong_AsLongLong(row);
    if (number == -1 && PyErr_Occurred()) return false;
    const size_t begin = memory_.size();
    if (!append_bytes(bytes)) return false;
    told_[number] = {begin, memory_.size() - begin};
  }
  return true;
}

// The field that a span's name is in; nothing for an empty one.
bool OtlpFragments::append_name(PyObject* name) {
  Py_ssize_t size;
  const char* text = PyUnicode_AsUTF8AndSize(name, &size);
  PyObject* escaped = nullptr;
  if (text == nullptr) {
    if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) return false;
    PyErr_Clear();
    escaped = PyUnicode_AsEncodedString(name, "utf-8", "backslashreplace");  // a lone surrogate, which UTF-8 can't hold
    if (escaped == nullptr) return false;
    text = PyBytes_AS_STRING(escaped);
    size = PyBytes_GET_SIZE(escaped);
  }
  if (size > 0) {
    char head[1 + kMostVarintBytes];
    WireWriter out(head);
    out.tag<tags::span::kName>();
    out.varint(static_cast<uint64_t>(size));
    memory_.append(head, static_cast<size_t>(out.at() - head));
    memory_.append(text, static_cast<size_t>(size));
  }
  Py_XDECREF(escaped);
  return true;
}

bool OtlpFragments::append_bytes(PyObject* bytes) {
  char* data;
  Py_ssize_t size;
  if (PyBytes_AsStringAndSize(bytes, &data, &size) < 0) return false;
  memory_.append(data, static_cast<size_t>(size));
  return true;
}

void OtlpFragments::pad() { memory_.append(kWireSlack, '\0'); }

}  // namespace recfn
