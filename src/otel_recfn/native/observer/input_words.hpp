// The words among the inputs of an operator that FLOPs are counted of by them, as JSON by place: a convolution's padding may be one
// ("same"). torch.profiler counts nothing then, but keeps it.
#pragma once
#include <cstdint>
#include <cstring>
#include <string>

#include "core/record.hpp"
#include "core/utf8.hpp"
#include "pytorch/range_details.hpp"

namespace recfn {

constexpr bool kHasWords = kTold<decltype(details::inputs)> && compiles<const c10::IValue&>([](const auto& value) -> decltype(
    value.isString(), value.toStringRef().data(), value.toStringRef().size(), void()) {});

inline bool is_counted_by_words(const char* operator_name) { return std::strcmp(operator_name, "aten::conv2d") == 0; }

// The text of UTF-8 as a JSON string.
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

// Empty where there are none. May throw what reading the inputs throws.
template <typename Inputs>
std::string words_among(const Inputs& inputs) {
  std::string words;
  for (size_t place = 0; place < inputs.size(); ++place) {
    if (!inputs[place].isString()) continue;
    const auto& word = inputs[place].toStringRef();
    words += words.empty() ? "{\"" : ",\"";
    words += std::to_string(place) + "\":";
    append_json_string(words, word.data(), cut_at_character(word.data(), word.size(), kMaxWordBytes));
  }
  if (!words.empty()) words += '}';
  return words;
}

}  // namespace recfn
