// The texts that a call needs, as ASCII JSON in one piece of memory.
#pragma once
#include "chrome_writer.hpp"
#include "module.hpp"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace recfn {

void append_json(std::string& out, PyObject* text, bool is_json);

// Texts one after another, each PaddedText once all are there.
class TextArena {
 public:
  // The text's number. What is appended to `memory()` between two calls is one text.
  uint32_t seal() {
    ends_.push_back(memory_.size());
    return static_cast<uint32_t>(ends_.size() - 1);
  }
  std::string& memory() { return memory_; }
  void pad() { memory_.append(kSlack, ' '); }

  size_t size(uint32_t number) const { return ends_[number] - begin(number); }
  PaddedText operator[](uint32_t number) const { return {memory_.data() + begin(number), size(number)}; }

 private:
  size_t begin(uint32_t number) const { return number == 0 ? 0 : ends_[number - 1]; }

  std::string memory_;
  std::vector<size_t> ends_;
};

// The texts of Batch.names that the rows use, by their index there: as JSON strings, or as they are where they are JSON.
class NameTexts {
 public:
  NameTexts(PyObject* names, bool is_json, TextArena& arena) : names_(names), is_json_(is_json), arena_(arena) {}

  // Bytes of the text; -1 with an exception set.
  Py_ssize_t use(uint32_t index) {
    if (index >= number_.size()) number_.resize(std::max<size_t>(size_t{index} + 1, 2 * number_.size()), kUnused);
    if (number_[index] == kUnused && !add(index)) return -1;
    return static_cast<Py_ssize_t>(arena_.size(number_[index]));
  }

  PaddedText operator[](uint32_t index) const { return arena_[number_[index]]; }

 private:
  static constexpr uint32_t kUnused = UINT32_MAX;

  bool add(uint32_t index) {
    PyObject* name = PySequence_GetItem(names_, static_cast<Py_ssize_t>(index));
    if (name == nullptr) return false;
    const bool fits = PyUnicode_Check(name);
    if (fits) {
      append_json(arena_.memory(), name, is_json_);
      number_[index] = arena_.seal();
    } else {
      PyErr_Format(PyExc_TypeError, "names[%u] is %R; a name is a str", index, name);
    }
    Py_DECREF(name);
    return fits;
  }

  PyObject* names_;
  bool is_json_;
  TextArena& arena_;
  std::vector<uint32_t> number_;
};

}  // namespace recfn
