// A text of UTF-8 as a JSON string.
#pragma once
#include <cstdint>
#include <string>

namespace recfn {

inline void append_json_string(std::string& out, const char* data, uint32_t size) {
  static const char digits[] = "0123456789abcdef";
  out += '"';
  for (const char* at = data; at != data + size; ++at) {
    const auto byte = static_cast<unsigned char>(*at);
    if (byte < 0x20) {
      out += "\\u00";
      out += digits[byte >> 4];
      out += digits[byte & 15];
      continue;
    }
    if (byte == '"' || byte == '\\') out += '\\';
    out += *at;
  }
  out += '"';
}

}  // namespace recfn
