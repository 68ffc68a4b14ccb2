#include "calls/call_texts.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include "cpython/python.hpp"
#include "python/text.hpp"

namespace recfn {
namespace {

std::string as_utf8(PyObject* string) {
  const Utf8 utf8(string, kMaxNameBytes);
  return {utf8.text().data != nullptr ? utf8.text().data : "", utf8.text().size};
}

bool read_texts(PyObject* owner, const char* name, std::vector<std::string>& texts) {
  const Made given(PyObject_GetAttrString(owner, name));
  const Made all(given.object != nullptr ? PySequence_Fast(given.object, "a sequence of str") : nullptr);
  if (all.object == nullptr) return false;
  texts.clear();
  for (Py_ssize_t at = 0; at < PySequence_Fast_GET_SIZE(all.object); ++at) {
    PyObject* text = PySequence_Fast_GET_ITEM(all.object, at);
    if (!PyUnicode_Check(text)) return PyErr_Format(PyExc_TypeError, "%s has a %s; a str", name, Py_TYPE(text)->tp_name), false;
    texts.push_back(as_utf8(text));
  }
  return true;
}

bool begins_with(const std::string& text, const std::string& start) { return text.compare(0, start.size(), start) == 0; }

const std::string* start_among(const std::vector<std::string>& starts, const std::string& text) {
  const auto found = std::find_if(starts.begin(), starts.end(), [&text](const auto& start) { return begins_with(text, start); });
  return found != starts.end() ? &*found : nullptr;
}

bool ends_with_one_of(const std::vector<std::string>& ends, const std::string& text) {
  return std::any_of(ends.begin(), ends.end(), [&text](const std::string& end) {
    return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
  });
}

// A place is a file, or, with a slash at its end, a folder.
bool is_at_one_of(const std::vector<std::string>& places, const std::string& file) {
  return std::any_of(places.begin(), places.end(), [&file](const std::string& place) {
    return !place.empty() && place.back() == '/' ? begins_with(file, place) : file == place;
  });
}

std::array<std::string_view, 5> parts_of(const CFunction& function) {
  const char* const name = function.definition->ml_name;
  if (function.bound_to == nullptr || PyModule_Check(function.bound_to)) return {"<built-in function ", name, ">", "", ""};
  return {"<built-in method ", name, " of ", Py_TYPE(function.bound_to)->tp_name, " object>"};
}

}  // namespace

bool CallTexts::read(PyObject* texts) {
  return read_texts(texts, "prefixes", prefixes_) && read_texts(texts, "own", own_) &&
         read_texts(texts, "own_that_calls", own_that_calls_) && read_texts(texts, "asked", asked_) &&
         read_texts(texts, "included", included_) && read_texts(texts, "excluded", excluded_);
}

std::string CallTexts::trimmed(const std::string& file) const {
  const std::string* prefix = start_among(prefixes_, file);
  return prefix != nullptr ? file.substr(prefix->size()) : file;
}

bool CallTexts::selects(const std::string& file, const std::string& trimmed) const {
  const auto is_among = [&](const Texts& places) { return is_at_one_of(places, file) || is_at_one_of(places, trimmed); };
  return (included_.empty() || is_among(included_)) && !is_among(excluded_);
}

CallName CallTexts::of_code(PyCodeObject* code, int line) const {
  CallName name;
  const std::string file = as_utf8(code->co_filename), shown = trimmed(file);
  if (start_among(own_, file) != nullptr) {
    name.hides = start_among(own_that_calls_, file) != nullptr ? Hides::kItself : Hides::kAllBelow;
  } else if (!selects(file, shown)) {
    name.hides = Hides::kItself;
  } else if (ends_with_one_of(asked_, file)) {
    name.hides = Hides::kAskFrame;
  } else {
    name.text = text_of(shown, code, line);
  }
  return name;
}

std::string CallTexts::of_line(PyCodeObject* code, int line) const {
  const std::string file = as_utf8(code->co_filename);
  return start_among(own_, file) == nullptr ? text_of(trimmed(file), code, line) : std::string();
}

std::string CallTexts::text_of(const std::string& shown, PyCodeObject* code, int line) {
  std::string text = shown + "(" + std::to_string(line) + "): " + as_utf8(code->co_name);
  text.resize(cut_at_character(text.data(), text.size(), kMaxNameBytes));
  return text;
}

// Its repr, without the address.
std::string CallTexts::of_function(PyObject* callable, const CFunction& function) {
  if (function.definition == nullptr) return std::string("<") + Py_TYPE(callable)->tp_name + " object>";
  std::string text;
  for (const std::string_view part : parts_of(function)) text += part;
  return text;
}

bool CallTexts::is_of_function(const std::string& text, const CFunction& function) {
  std::string_view rest = text;
  for (const std::string_view part : parts_of(function)) {
    if (rest.substr(0, part.size()) != part) return false;
    rest.remove_prefix(part.size());
  }
  return rest.empty();
}

}  // namespace recfn
