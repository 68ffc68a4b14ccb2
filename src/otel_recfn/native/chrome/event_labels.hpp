// What a Chrome event says beside its numbers, as one text. Rows of the same operator on the same thread share it, so it is
// made once, found again by the columns that say it, and copied in one piece.
//
//   ,"cat":"cpu_op","name":"aten::add","args":{"Scope":"FUNCTION","Thread id":1,"Input Dims":[[2]],"Event id":
//   └───────────── named ────────────┘
//
// What repeats stands together: in one piece for the compressor too, which makes it faster by a fifteenth and the file smaller
// by a tenth.
#pragma once
#include "chrome/chrome_columns.hpp"
#include "chrome/chrome_writer.hpp"
#include "cpython/python.hpp"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace recfn {

class EventLabels {
 public:
  // Both are borrowed; `names` is the batch's.
  EventLabels(PyObject* names, const ChromeColumns& columns) : names_(names), columns_(columns) {}

  // The label's number; -1 with an exception set. Needs the GIL.
  Py_ssize_t find(Py_ssize_t row, uint64_t thread_id);
  // Once all are found: from here on texts can be read in blocks.
  void pad() { memory_.append(kSlack, ' '); }

  size_t size(uint32_t label) const { return labels_[label].size; }
  // Of a call of Python code: whether it is one, and the number in the name of a module's.
  bool is_call(uint32_t label) const { return labels_[label].is_call; }
  const std::optional<uint32_t>& module_number(uint32_t label) const { return labels_[label].module_number; }
  PaddedText text(uint32_t label) const { return {memory_.data() + labels_[label].begin, labels_[label].size}; }
  PaddedText named(uint32_t label) const { return {memory_.data() + labels_[label].begin, labels_[label].named}; }

 private:
#define RECFN_COUNT(type, name, empty, attribute, argument, ...) +(sizeof argument > 1)
  static constexpr size_t kKeyWithoutTexts = 5, kTexts = 0 RECFN_TEXT_COLUMNS(RECFN_COUNT);
#undef RECFN_COUNT
  using Key = std::array<uint32_t, kKeyWithoutTexts + kTexts>;
  struct Label {
    Key key;
    size_t begin = 0, named = 0, size = 0;
    bool is_call = false;
    std::optional<uint32_t> module_number;
  };

  Key key_of(Py_ssize_t row) const;
  uint32_t& slot_of(const Key& key);
  void make_room();
  bool append(Py_ssize_t row, uint64_t thread_id, Label* label);
  bool append_name(Py_ssize_t row, Label* label);
  void number_step(Py_ssize_t row, std::string& quoted_name) const;
  bool append_texts(Py_ssize_t row);
  bool append_text(std::string& out, uint32_t name, bool is_json) const;
  bool is_call_named(Py_ssize_t row, const std::string& quoted_name) const;

  PyObject* names_;
  const ChromeColumns& columns_;
  std::string memory_;
  std::vector<Label> labels_;
  std::vector<uint32_t> slots_;  // a hash table: numbers of labels, each at the first free slot from its hash on; 2^n, half empty
};

}  // namespace recfn
