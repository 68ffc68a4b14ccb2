#include "chrome/json_texts.hpp"

namespace recfn {
namespace {

void append_escape(std::string& out, unsigned unit) {
  static const char digits[] = "0123456789abcdef";
  out += "\\u";
  for (int shift = 12; shift >= 0; shift -= 4) out += digits[(unit >> shift) & 15];
}

// A character that is no ASCII. A lone surrogate has no UTF-8: its escape is told as text.
void append_utf8(std::string& out, Py_UCS4 character) {
  if (character >= 0xD800 && character < 0xE000) {
    out += '\\';
    return append_escape(out, character);
  }
  if (character < 0x800) {
    out += static_cast<char>(0xC0 | character >> 6);
  } else {
    if (character < 0x10000) {
      out += static_cast<char>(0xE0 | character >> 12);
    } else {
      out += static_cast<char>(0xF0 | character >> 18);
      out += static_cast<char>(0x80 | (character >> 12 & 0x3F));
    }
    out += static_cast<char>(0x80 | (character >> 6 & 0x3F));
  }
  out += static_cast<char>(0x80 | (character & 0x3F));
}

void append_ascii(std::string& out, Py_UCS4 character) {
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
  if (character < 0x20) return append_escape(out, character);
  out += static_cast<char>(character);
}

}  // namespace

void append_json(std::string& out, PyObject* text, bool is_json) {
  const int kind = PyUnicode_KIND(text);
  const void* data = PyUnicode_DATA(text);
  const Py_ssize_t length = PyUnicode_GET_LENGTH(text);
  if (!is_json) out += '"';
  for (Py_ssize_t i = 0; i < length; ++i) {
    const Py_UCS4 character = PyUnicode_READ(kind, data, i);
    if (character >= 0x80) {
      append_utf8(out, character);
    } else if (is_json) {
      out += static_cast<char>(character);
    } else {
      append_ascii(out, character);
    }
  }
  if (!is_json) out += '"';
}

}  // namespace recfn
