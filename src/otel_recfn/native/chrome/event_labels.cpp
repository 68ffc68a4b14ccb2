#include "chrome/event_labels.hpp"

#include "chrome/json_texts.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace recfn {
namespace {

constexpr uint32_t kFree = UINT32_MAX;
constexpr size_t kFirstSlots = 256;
constexpr size_t kMostDigits = 9;  // of a module's number

// Products that don't wait for each other: the sum is there after one multiplication's time.
template <typename Key>
size_t hash_of(const Key& key) {
  constexpr uint64_t kOdd = 0x9E37'79B9'7F4A'7C15;  // 2^64 divided by the golden ratio
  uint64_t sum = 0;
  for (size_t i = 0; i < key.size(); ++i) sum += key[i] * (kOdd * (2 * i + 1));
  return sum ^ sum >> 32;
}

// The number at the end of the name of a module's call.
std::optional<uint32_t> module_number_in(const std::string& quoted_name) {
  const char* prefix = kCallPrefixes[kModuleSource];
  if (quoted_name.compare(1, std::strlen(prefix), prefix) != 0) return std::nullopt;
  const size_t from = quoted_name.rfind('_') + 1, end = quoted_name.size() - 1;
  if (from <= std::strlen(prefix) || from >= end || end - from > kMostDigits) return std::nullopt;
  uint32_t number = 0;
  for (size_t at = from; at < end; ++at) {
    const auto digit = static_cast<uint32_t>(quoted_name[at] - '0');
    if (digit > 9) return std::nullopt;
    number = 10 * number + digit;
  }
  return number;
}

}  // namespace

EventLabels::Key EventLabels::key_of(Py_ssize_t row) const {
  const uint32_t sort = columns_.scope[row] | columns_.source[row] << 8 | columns_.kind[row] << 16;
  const auto step = static_cast<uint64_t>(columns_.step_number[row]);
  const auto step_low = static_cast<uint32_t>(step), step_high = static_cast<uint32_t>(step >> 32);
  Key key{columns_.name[row], columns_.thread[row], sort, step_low, step_high};
  size_t at = kKeyWithoutTexts;
#define RECFN_PART(type, name, empty, attribute, argument, ...) \
  if constexpr (sizeof argument > 1) key[at++] = columns_.name[row];
  RECFN_TEXT_COLUMNS(RECFN_PART)
#undef RECFN_PART
  return key;
}

Py_ssize_t EventLabels::find(Py_ssize_t row, uint64_t thread_id) {
  if (2 * labels_.size() >= slots_.size()) make_room();
  const Key key = key_of(row);
  uint32_t& slot = slot_of(key);
  if (slot != kFree) return slot;
  Label label{key};
  if (!append(row, thread_id, &label)) return -1;
  labels_.push_back(label);
  slot = static_cast<uint32_t>(labels_.size() - 1);
  return slot;
}

// Where the key's label is, or would be.
uint32_t& EventLabels::slot_of(const Key& key) {
  size_t at = hash_of(key);
  while (true) {
    uint32_t& slot = slots_[at++ & (slots_.size() - 1)];
    if (slot == kFree || labels_[slot].key == key) return slot;
  }
}

void EventLabels::make_room() {
  slots_.assign(std::max(kFirstSlots, 2 * slots_.size()), kFree);
  for (uint32_t label = 0; label < labels_.size(); ++label) slot_of(labels_[label].key) = label;
}

bool EventLabels::append(Py_ssize_t row, uint64_t thread_id, Label* label) {
  label->begin = memory_.size();
  if (!append_name(row, label)) return false;
  label->named = memory_.size() - label->begin;
  memory_ += ",\"args\":{\"Scope\":\"";
  memory_ += kScopeNames[columns_.scope[row]];
  memory_ += '"';
  memory_ += ",\"Thread id\":" + std::to_string(thread_id);
  if (!append_texts(row)) return false;
  memory_ += ",\"Event id\":";
  label->size = memory_.size() - label->begin;
  return true;
}

bool EventLabels::append_name(Py_ssize_t row, Label* label) {
  std::string quoted;
  if (!append_text(quoted, columns_.name[row], false)) return false;
  label->is_call = is_call_named(row, quoted);
  if (label->is_call) label->module_number = module_number_in(quoted);
  if (columns_.step_number[row] != -1) number_step(row, quoted);
  // As torch.profiler's, which its readers look for. A module's call is Python; the optimizers' steps, of the same source, are
  // annotations.
  memory_ += ",\"cat\":\"";
  memory_ += !columns_.is_range(row)              ? "cpu_instant_event"
             : label->is_call                       ? "python_function"
             : columns_.scope[row] == kUserScope ? "user_annotation"
                                                   : "cpu_op";
  memory_ += "\",\"name\":" + quoted;
  return true;
}

// As torch.profiler names its steps, by which its readers find them.
void EventLabels::number_step(Py_ssize_t row, std::string& quoted_name) const {
  if (quoted_name == "\"step\"") quoted_name = "\"ProfilerStep\"";
  quoted_name.insert(quoted_name.size() - 1, "#" + std::to_string(columns_.step_number[row]));
}

bool EventLabels::is_call_named(Py_ssize_t row, const std::string& quoted_name) const {
  if (!columns_.is_range(row) || columns_.source[row] >= std::size(kCallPrefixes)) return false;
  const char* prefix = kCallPrefixes[columns_.source[row]];
  return prefix != nullptr && quoted_name.compare(1, std::strlen(prefix), prefix) == 0;
}

bool EventLabels::append_texts(Py_ssize_t row) {
#define RECFN_APPEND(type, name, empty, attribute, argument, is_json)         \
  if (sizeof argument > 1 && columns_.name[row] != empty) {                   \
    memory_ += ",\"" argument "\":";                                          \
    if (!append_text(memory_, columns_.name[row], is_json)) return false;     \
  }
  RECFN_TEXT_COLUMNS(RECFN_APPEND)
#undef RECFN_APPEND
  return true;
}

bool EventLabels::append_text(std::string& out, uint32_t name, bool is_json) const {
  PyObject* text = PySequence_GetItem(names_, static_cast<Py_ssize_t>(name));
  if (text == nullptr) return false;
  const bool is_text = PyUnicode_Check(text);
  if (is_text) {
    append_json(out, text, is_json);
  } else {
    PyErr_Format(PyExc_TypeError, "names[%u] is %R; a name is a str", name, text);
  }
  Py_DECREF(text);
  return is_text;
}

}  // namespace recfn
