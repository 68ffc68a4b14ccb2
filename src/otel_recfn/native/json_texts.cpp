#include "json_texts.hpp"

namespace recfn {
namespace {

void append_escape(std::string& out, unsigned unit) {
  static const char digits[] = "0123456789abcdef";
  out += "\\u";
  for (int shift = 12; shift >= 0; shift -= 4) out += digits[(unit >> shift) & 15];
}

// A character that is no plain ASCII, as JSON's escapes of UTF-16 units: a lone surrogate stays one, and the output valid.
void append_unicode(std::string& out, Py_UCS4 character) {
  if (character < 0x10000) return append_escape(out, character);
  character -= 0x10000;
  append_escape(out, 0xD800 | (character >> 10));
  append_escape(out, 0xDC00 | (character & 0x3FF));
}

void append_in_string(std::string& out, Py_UCS4 character) {
  switch (character) {
    case '"': out += "\\\""; return;
    case '\\': out += "\\\\"; return;
    case '\n': out += "\\n"; return;
    case '\r': out += "\\r"; return;
    case '\t': out += "\\t"; return;
    case '\b': out += "\\b"; return;
    case '\f': out += "\\f"; return;
    default: break;
  }
  if (character >= 0x20 && character < 0x7F) {
    out += static_cast<char>(character);
  } else {
    append_unicode(out, character);
  }
}

}  // namespace

void append_json(std::string& out, PyObject* text, bool is_json) {
  const int kind = PyUnicode_KIND(text);
  const void* data = PyUnicode_DATA(text);
  const Py_ssize_t length = PyUnicode_GET_LENGTH(text);
  if (!is_json) out += '"';
  for (Py_ssize_t i = 0; i < length; ++i) {
    const Py_UCS4 character = PyUnicode_READ(kind, data, i);
    if (!is_json) {
      append_in_string(out, character);
    } else if (character < 0x80) {
      out += static_cast<char>(character);
    } else {
      append_unicode(out, character);
    }
  }
  if (!is_json) out += '"';
}

}  // namespace recfn
