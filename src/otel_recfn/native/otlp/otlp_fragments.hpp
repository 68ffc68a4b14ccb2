// What spans share, as bytes: names, attributes of a scope in a thread, shapes. Each is made once
// in a call, by Python, and copied from then on.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cpython/python.hpp"
#include "model/columns.hpp"
#include "otlp/wire_writer.hpp"

namespace recfn {

// The kinds of fragments, with the numbers of sinks/otlp/encoding.py.
enum FragmentKind : uint32_t {
  kNameField = 0,
  kCodeAttributes = 1,
  kExceptionEvent = 2,  // without its time and its stack trace
  kErrorStatus = 3,
  kScopeAndThread = 4,
  kErrorTypeAttribute = 5,
  kExceptionStacktrace = 6,
// The attribute of a column of texts, of which some have one.
#define RECFN_KIND(type, name, ...) k_##name##_text,
  RECFN_TEXT_COLUMNS(RECFN_KIND)
#undef RECFN_KIND
      kNumFragmentKinds,
};

class OtlpFragments {
 public:
  // Without the GIL: notes that the fragment is needed. `kind_size`: how many of the kind there may
  // be.
  void need(FragmentKind kind, uint32_t index, size_t kind_size) {
    auto& offsets = offsets_[kind];
    if (offsets.empty()) offsets.assign(kind_size, kUnknown);
    if (offsets[index] != kUnknown) return;
    offsets[index] = static_cast<uint32_t>(needed_.size());
    needed_.push_back({kind, index});
  }

  // With the GIL: has them made. False with an exception set.
  bool make(PyObject* names, PyObject* maker) {
    made_.reserve(needed_.size());
    for (const Need& need : needed_) {
      const size_t begin = memory_.size();
      const bool is_name = need.kind == kNameField;
      const Reference made(is_name ? name_at(names, need.index) : make_fragment(maker, need));
      if (!made || !(is_name ? append_name(made.get()) : append_bytes(made.get()))) return false;
      made_.push_back({begin, memory_.size() - begin});
    }
    memory_.append(kWireSlack, '\0');
    return true;
  }

  // Of single rows: attributes of folded ranges. False with an exception set.
  bool take_extra(PyObject* extra) {
    PyObject *row, *bytes;
    for (Py_ssize_t position = 0; PyDict_Next(extra, &position, &row, &bytes);) {
      const int64_t number = PyLong_AsLongLong(row);
      if (number == -1 && PyErr_Occurred()) return false;
      const size_t begin = memory_.size();
      if (!append_bytes(bytes)) return false;
      extra_[number] = {begin, memory_.size() - begin};
    }
    return true;
  }

  std::string_view text(FragmentKind kind, uint32_t index) const {
    return text_of(made_[offsets_[kind][index]]);
  }
  std::string_view extra(int64_t row) const {
    if (extra_.empty()) return {memory_.data(), 0};
    const auto found = extra_.find(row);
    return found == extra_.end() ? std::string_view{memory_.data(), 0} : text_of(found->second);
  }

 private:
  static constexpr uint32_t kUnknown = UINT32_MAX;
  struct Need {
    FragmentKind kind;
    uint32_t index;
  };
  struct Span {
    size_t begin, size;
  };

  std::string_view text_of(Span span) const { return {memory_.data() + span.begin, span.size}; }

  static PyObject* name_at(PyObject* names, uint32_t index) {
    return PySequence_GetItem(names, static_cast<Py_ssize_t>(index));
  }
  static PyObject* make_fragment(PyObject* maker, const Need& need) {
    return PyObject_CallFunction(maker, "II", static_cast<unsigned>(need.kind), need.index);
  }

  // The field that a span's name is in; nothing for an empty one.
  bool append_name(PyObject* name) {
    const Utf8Text utf8(name);
    if (utf8.text().data() == nullptr) return false;
    if (utf8.text().empty()) return true;
    char head[1 + kMaxVarintBytes];
    WireWriter out(head);
    out.tag<tags::kSpanName>();
    out.varint(utf8.text().size());
    memory_.append(head, static_cast<size_t>(out.at() - head));
    memory_ += utf8.text();
    return true;
  }

  bool append_bytes(PyObject* bytes) {
    char* data;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(bytes, &data, &size) < 0) return false;
    memory_.append(data, static_cast<size_t>(size));
    return true;
  }

  std::vector<uint32_t> offsets_[kNumFragmentKinds];
  std::vector<Need> needed_;
  std::vector<Span> made_;
  std::unordered_map<int64_t, Span> extra_;
  std::string memory_;
};

}  // namespace recfn
