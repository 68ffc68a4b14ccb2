// What a Chrome event says beside its numbers, as one text. Rows of the same operator on the same
// thread share it, so it is made once, found again by the columns that say it, and copied in one
// piece.
//
//   ,"cat":"cpu_op","name":"aten::add","args":{"Scope":"FUNCTION","Thread id":1,"Event id":
//   └───────────── named ────────────┘
//
//   ,"cat":"user_annotation","name":"train#3","args":{"Scope":"USER_SCOPE","Source":"STEP", ...
//
// What repeats stands together: in one piece for the compressor too, which makes it faster by a
// fifteenth and the file smaller by a tenth.
#pragma once
#include <array>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "chrome/chrome_writer.hpp"
#include "columns/column_view.hpp"
#include "cpython/python.hpp"
#include "model/columns.hpp"
#include "model/events.hpp"
#include "model/numbers.hpp"

namespace recfn {

struct ChromeColumns : BatchColumns {
  bool is_range(Py_ssize_t row) const { return kind[row] == kRangeRow; }
  bool is_memory(Py_ssize_t row) const { return kind[row] == kMemoryRow; }
  // What may end elsewhere or out of turn: as a slice it could overlap others of its thread.
  bool is_async(Py_ssize_t row) const {
    return (flags[row] & kOverlapping) != 0 || thread[row] != end_thread[row];
  }
  bool is_partial(Py_ssize_t row) const { return (flags[row] & kPartial) != 0; }
  // Whether what begins in it lies in it, unless that says otherwise.
  bool encloses(Py_ssize_t row) const { return (flags[row] & kAsync) == 0; }
  bool has_parent_elsewhere(Py_ssize_t row) const { return (flags[row] & kParentElsewhere) != 0; }
};

inline void append_escaped(std::string& out, char character) {
  static const char digits[] = "0123456789abcdef";
  switch (character) {
    case '"':
      out += "\\\"";
      return;
    case '\\':
      out += "\\\\";
      return;
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    case '\b':
      out += "\\b";
      return;
    case '\f':
      out += "\\f";
      return;
    default:
      break;
  }
  if (static_cast<uint8_t>(character) >= 0x20) return out.push_back(character);
  out += "\\u00";
  out += digits[character >> 4];
  out += digits[character & 15];
}

// A JSON string; or, of a text that is JSON already, the same. `support/texts.py` says why nothing
// is escaped that needn't be.
inline bool append_json(std::string& out, PyObject* string, bool is_json) {
  const Utf8Text utf8(string);
  if (utf8.text().data() == nullptr) return false;
  if (is_json) {
    out += utf8.text();
    return true;
  }
  out += '"';
  for (const char character : utf8.text()) append_escaped(out, character);
  out += '"';
  return true;
}

// The number at the end of the name of a module's call.
inline std::optional<uint32_t> module_number_in(const std::string& quoted_name) {
  constexpr size_t kMaxDigits = 9;
  const char* prefix = kCallPrefixes[kModuleSource];
  if (quoted_name.compare(1, std::strlen(prefix), prefix) != 0) return std::nullopt;
  const size_t from = quoted_name.rfind('_') + 1;
  const size_t end = quoted_name.size() - 1;
  if (from <= std::strlen(prefix) || from >= end || end - from > kMaxDigits) return std::nullopt;
  uint32_t number = 0;
  for (size_t at = from; at < end; ++at) {
    const auto digit = static_cast<uint32_t>(quoted_name[at] - '0');
    if (digit > 9) return std::nullopt;
    number = 10 * number + digit;
  }
  return number;
}

class EventLabels {
 public:
  // Both are borrowed; `names` is the batch's.
  EventLabels(PyObject* names, const ChromeColumns& columns) : names_(names), columns_(columns) {}

  // The label's number; -1 with an exception set: nothing can be found any more. Needs the GIL.
  Py_ssize_t find(Py_ssize_t row, uint64_t thread_id) {
    const auto [found, is_new] =
        numbers_.try_emplace(key_of(row), static_cast<uint32_t>(labels_.size()));
    if (!is_new) return found->second;
    Label label;
    if (!append(row, thread_id, &label)) return -1;
    labels_.push_back(label);
    return found->second;
  }

  // Once all are found: from here on texts can be read in blocks.
  void pad() { memory_.append(kSlack, ' '); }

  size_t size(uint32_t label) const { return labels_[label].size; }
  // The number in the name of a module's call.
  const std::optional<uint32_t>& module_number(uint32_t label) const {
    return labels_[label].module_number;
  }
  std::string_view text(uint32_t label) const {
    return {memory_.data() + labels_[label].begin, labels_[label].size};
  }
  std::string_view named(uint32_t label) const {
    return {memory_.data() + labels_[label].begin, labels_[label].named};
  }

 private:
#define RECFN_COUNT(type, name, empty, attribute, argument, ...) +(sizeof argument > 1)
  static constexpr size_t kKeyWithoutTexts = 5;
  static constexpr size_t kTexts = 0 RECFN_TEXT_COLUMNS(RECFN_COUNT);
#undef RECFN_COUNT
  using Key = std::array<uint32_t, kKeyWithoutTexts + kTexts>;
  struct Label {
    size_t begin = 0, named = 0, size = 0;
    std::optional<uint32_t> module_number;
  };

  // Products that don't wait for each other: the sum is there after one multiplication's time.
  // Without `noexcept`, which would say that it is quick: so the map of libstdc++ keeps what it
  // was, and doesn't make it again for each key that it looks at.
  struct KeyHash {
    size_t operator()(const Key& key) const {
      uint64_t sum = 0;
      for (size_t i = 0; i < key.size(); ++i) sum += key[i] * (kOddNumber * (2 * i + 1));
      return sum ^ sum >> 32;
    }
  };

  Key key_of(Py_ssize_t row) const {
    const uint32_t sort =
        columns_.scope[row] | columns_.source[row] << 8 | columns_.kind[row] << 16;
    const auto step = static_cast<uint64_t>(columns_.step_number[row]);
    const auto step_low = static_cast<uint32_t>(step);
    const auto step_high = static_cast<uint32_t>(step >> 32);
    Key key{columns_.name[row], columns_.thread[row], sort, step_low, step_high};
    size_t at = kKeyWithoutTexts;
#define RECFN_PART(type, name, empty, attribute, argument, ...) \
  if constexpr (sizeof argument > 1) key[at++] = columns_.name[row];
    RECFN_TEXT_COLUMNS(RECFN_PART)
#undef RECFN_PART
    return key;
  }

  bool append(Py_ssize_t row, uint64_t thread_id, Label* label) {
    label->begin = memory_.size();
    std::string quoted_name;
    if (!append_text(quoted_name, columns_.name[row], false)) return false;
    const bool is_call = is_call_named(row, quoted_name);
    if (is_call) label->module_number = module_number_in(quoted_name);
    append_name(row, is_call, quoted_name);
    label->named = memory_.size() - label->begin;
    memory_ += ",\"args\":{\"Scope\":\"";
    memory_ += kScopeNames[columns_.scope[row]];
    memory_ += '"';
    if (!is_call) append_source(row);
    memory_ += ",\"Thread id\":" + std::to_string(thread_id);
    if (!append_texts(row)) return false;
    memory_ += ",\"Event id\":";
    label->size = memory_.size() - label->begin;
    return true;
  }

  void append_name(Py_ssize_t row, bool is_call, std::string& quoted_name) {
    if (columns_.step_number[row] != -1) number_step(row, quoted_name);
    memory_ += ",\"cat\":\"";
    memory_ += category_of(row, is_call);
    memory_ += "\",\"name\":" + quoted_name;
  }

  // The source of a range, unless it is the one that readers assume of the category. They know
  // calls by category and name.
  void append_source(Py_ssize_t row) {
    const bool is_annotation = columns_.scope[row] == kUserScope;
    const uint32_t assumed = is_annotation ? kRecordFunctionSource : kTorchSource;
    const uint32_t source = columns_.source[row];
    if (!columns_.is_range(row) || source == assumed || source >= std::size(kSourceNames)) return;
    memory_ += ",\"Source\":\"";
    memory_ += kSourceNames[source];
    memory_ += '"';
  }

  // As torch.profiler's, which its readers look for. A module's call is Python; the range around
  // one that decodes, of the same source, is an annotation.
  const char* category_of(Py_ssize_t row, bool is_call) const {
    if (!columns_.is_range(row)) return "cpu_instant_event";
    if (is_call) return "python_function";
    return columns_.scope[row] == kUserScope ? "user_annotation" : "cpu_op";
  }

  // As torch.profiler names its steps, by which its readers find them.
  void number_step(Py_ssize_t row, std::string& quoted_name) const {
    if (quoted_name == "\"step\"") quoted_name = "\"ProfilerStep\"";
    quoted_name.insert(quoted_name.size() - 1, "#" + std::to_string(columns_.step_number[row]));
  }

  bool append_texts(Py_ssize_t row) {
#define RECFN_APPEND(type, name, empty, attribute, argument, is_json)     \
  if (sizeof argument > 1 && columns_.name[row] != empty) {               \
    memory_ += ",\"" argument "\":";                                      \
    if (!append_text(memory_, columns_.name[row], is_json)) return false; \
  }
    RECFN_TEXT_COLUMNS(RECFN_APPEND)
#undef RECFN_APPEND
    return true;
  }

  bool append_text(std::string& out, uint32_t name, bool is_json) const {
    const Reference text(PySequence_GetItem(names_, static_cast<Py_ssize_t>(name)));
    return text && append_json(out, text.get(), is_json);
  }

  bool is_call_named(Py_ssize_t row, const std::string& quoted_name) const {
    if (!columns_.is_range(row) || columns_.source[row] >= std::size(kCallPrefixes)) return false;
    const char* prefix = kCallPrefixes[columns_.source[row]];
    return prefix != nullptr && quoted_name.compare(1, std::strlen(prefix), prefix) == 0;
  }

  PyObject* names_;
  const ChromeColumns& columns_;
  std::string memory_;
  std::vector<Label> labels_;
  std::unordered_map<Key, uint32_t, KeyHash> numbers_;  // of labels
};

}  // namespace recfn
