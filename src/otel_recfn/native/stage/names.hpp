// Numbers of names, and the names by which ranges are added up and shown.
//
//     name of a range                  added up and shown as
//     ------------------------------   -----------------------------------------------------
//     nn.Module: Block_3               nn.Module: Block      module calls, by their class
//     autograd::engine::...: MulBack   MulBack               the range around a backward node;
//                                                            with torch's names, as it is
//     another one                      itself
//     path of a module: layers.3.mlp   itself, and layers.*.mlp for all siblings together
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cpython/python.hpp"
#include "model/events.hpp"

namespace recfn::stage {

// `nn.Module: Block` of `nn.Module: Block_0`: the class of a module call, without the number of the
// instance.
inline std::string_view without_instance(std::string_view name, size_t prefix) {
  size_t end = name.size();
  while (end > prefix && name[end - 1] >= '0' && name[end - 1] <= '9') --end;
  const bool has_number = end < name.size() && end > prefix && name[end - 1] == '_';
  return has_number ? name.substr(0, end - 1) : name;
}

// `layers.*.linear` of `layers.3.linear`: the path of a module with `*` in place of each part that
// is a number.
inline std::string without_numbers(std::string_view path) {
  std::string found;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    const bool is_number =
        !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
    found += is_number ? std::string_view("*") : part;
    if (end < path.size()) found += '.';
    begin = end + 1;
  }
  return found;
}

// Names of batches by number, the same name always by the same number; 0 is the number of the empty
// name. With the GIL, but for reading numbers. Batches that follow each other mostly have the same
// list, which only grows.
class Names {
 public:
  explicit Names(bool torch_names) : torch_names_(torch_names) {}

  // Numbers the names of a batch's list. False with an error set.
  bool number_all(PyObject* list) {
    const Py_ssize_t size = PySequence_Size(list);
    if (size < 0 || (names_.empty() && !add_empty_name())) return false;
    if (list != list_.get()) {
      list_ = Reference();
      in_list_.clear();
    }
    for (Py_ssize_t index = static_cast<Py_ssize_t>(in_list_.size()); index < size; ++index) {
      const Reference name(PySequence_GetItem(list, index));
      uint32_t number = 0;
      if (!name || !find_or_add(name.get(), number)) return false;
      in_list_.push_back(number);
    }
    list_ = Reference(Py_NewRef(list));
    return true;
  }

  size_t listed() const { return in_list_.size(); }  // the names of the list that was numbered last
  uint32_t number(uint32_t in_list) const { return in_list_[in_list]; }

  // The number of what ranges of a name are added up and shown by: of a module call the class, of
  // the range around a backward node the node, unless names are torch.profiler's.
  uint32_t display_name(uint32_t number) const { return names_[number].display_name; }

  // Whether backward nodes are one span with the range around them.
  bool joins_nodes() const { return !torch_names_; }

  // The number of a module's path without numbers.
  uint32_t without_numbers(uint32_t number) const { return names_[number].without_numbers; }

  PyObject* text(uint32_t number) const { return names_[number].text.get(); }  // borrowed
  size_t size() const { return names_.size(); }

  // Forgets all names, when none of their numbers is needed any longer.
  void forget() {
    number_by_name_.clear();
    names_.clear();
    in_list_.clear();
    list_ = Reference();
  }

 private:
  struct Name {
    Reference text;
    uint32_t display_name, without_numbers;
  };

  bool add_empty_name() {
    uint32_t number = 0;
    return add("", number);
  }

  bool find_or_add(PyObject* text, uint32_t& number) {
    Py_ssize_t size = 0;
    if (!PyUnicode_Check(text)) {
      PyErr_Format(PyExc_TypeError, "a batch's names are strings, and one is %R", text);
      return false;
    }
    const char* const data = PyUnicode_AsUTF8AndSize(text, &size);
    if (data == nullptr) {
      if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) return false;
      PyErr_Clear();
      const Utf8Text escaped(text);  // lone surrogates, which no UTF-8 has
      return escaped.text().data() != nullptr && add(escaped.text(), number);
    }
    const std::string_view name(data, static_cast<size_t>(size));
    const auto known = number_by_name_.find(name);
    if (known == number_by_name_.end()) return add_new(Reference(Py_NewRef(text)), name, number);
    number = known->second;
    return true;
  }

  // A name that no object of Python's has as it is.
  bool add(std::string_view name, uint32_t& number) {
    const auto known = number_by_name_.find(name);
    if (known != number_by_name_.end()) {
      number = known->second;
      return true;
    }
    Reference text(to_text(name));
    Py_ssize_t size = 0;
    const char* const data = text ? PyUnicode_AsUTF8AndSize(text.get(), &size) : nullptr;
    return data != nullptr && add_new(std::move(text), {data, static_cast<size_t>(size)}, number);
  }

  // `name` is the memory of the text, which stays as long as that does.
  bool add_new(Reference text, std::string_view name, uint32_t& number) {
    number = static_cast<uint32_t>(names_.size());
    names_.push_back({std::move(text), number, number});
    number_by_name_.emplace(name, number);
    constexpr std::string_view kModulePrefix = kCallPrefixes[kModuleSource];
    uint32_t other = number;
    if (name.substr(0, kModulePrefix.size()) == kModulePrefix) {
      if (!add(without_instance(name, kModulePrefix.size()), other)) return false;
      names_[number].display_name = other;
    } else if (!torch_names_ && name.substr(0, kNodesPrefix.size()) == kNodesPrefix) {
      if (!add(name.substr(kNodesPrefix.size()), other)) return false;
      names_[number].display_name = other;
    } else if (name.find(' ') == std::string_view::npos) {
      if (!add(stage::without_numbers(name), other)) return false;
      names_[number].without_numbers = other;
    }
    return true;
  }

  const bool torch_names_;
  std::vector<Name> names_;
  std::unordered_map<std::string_view, uint32_t> number_by_name_;  // by the memory of their texts
  Reference list_;                                                 // what was numbered last
  std::vector<uint32_t> in_list_;  // the number of each of its names
};

}  // namespace recfn::stage
