// The names of calls, kept for the next ones: of Python functions as long as calls are traced, of C
// functions the recent ones. Both stand in tables where a call finds its name with one look.
// Everything here needs the GIL.
#pragma once
#include <cstring>
#include <unordered_map>
#include <utility>

#include "calls/call_texts.hpp"
#include "core/known_calls.hpp"
#include "cpython/python.hpp"
#include "model/numbers.hpp"

namespace recfn {

constexpr uint32_t kRecentBits = 10;  // of places in a table of recent names

inline uint64_t spread(const PyObject* code, int instruction) {
  return (reinterpret_cast<uintptr_t>(code) + static_cast<uint64_t>(instruction)) * kOddNumber;
}

// Names that were found lately, of what is shown, by code object and instruction. Whoever frees
// names empties it.
class RecentNames {
 public:
  // Null where it isn't among them.
  const KnownCall* find(const PyObject* code, int instruction) const {
    const Place& place = places_[place_of(code, instruction)];
    return place.code == code && place.instruction == instruction ? found_at(&place.call) : nullptr;
  }
  void keep(const PyObject* code, int instruction, const std::string& name) {
    places_[place_of(code, instruction)] = {code, instruction, KnownCall(text_of(name))};
  }
  void clear() {
    for (Place& place : places_) place = {};
  }

 private:
  struct Place {
    const PyObject* code = nullptr;
    int64_t instruction = 0;
    KnownCall call;
  };

  static size_t place_of(const PyObject* code, int instruction) {
    return static_cast<size_t>(spread(code, instruction) >> (64 - kRecentBits));
  }

  Place places_[size_t{1} << kRecentBits];
};

inline RecentNames recent_names;

// The C functions that were called lately, each in the one place that its definition and type have.
class RecentFunctions {
 public:
  // Null where it isn't among them, as what is bound to nothing never is.
  const KnownCall* find(const CFunction& function) const {
    if (__builtin_expect(function.bound_to == nullptr, 0)) return nullptr;
    const PyTypeObject* const type = Py_TYPE(function.bound_to);
    const Place& place = places_[place_of(function.definition, type)];
    return place.is_of(function.definition, type) ? found_at(&place.call) : nullptr;
  }
  // But not what is bound to nothing, has a type that may change unseen, or may be freed with its
  // definition.
  void keep(const CFunction& function, const std::string& name) {
    const PyMethodDef* const definition = function.definition;
    const PyTypeObject* const type =
        function.bound_to != nullptr ? Py_TYPE(function.bound_to) : nullptr;
    if (type == nullptr || type->tp_version_tag == 0 || is_pybind11s(type)) return;
    const uint32_t version = type->tp_version_tag;
    places_[place_of(definition, type)] = {definition,    type,    definition->ml_name,
                                           type->tp_name, version, KnownCall(text_of(name))};
  }
  void clear() {
    for (Place& place : places_) place = {};
  }

 private:
  // Another definition at the same address has another name, of which the pointer says enough where
  // it is a library's. Another type has another version, a number that CPython gives each type,
  // anew when it changes, and 0 while it has none; or another name, where it was renamed without
  // (from 3.13 on) or has another's number after `sys._clear_type_cache` (on 3.10).
  struct alignas(64) Place {
    const PyMethodDef* definition = nullptr;
    const PyTypeObject* type = nullptr;
    const void *name = nullptr, *type_name = nullptr;
    uint32_t type_version = 0;
    KnownCall call;

    bool is_of(const PyMethodDef* other, const PyTypeObject* other_type) const {
      return definition == other && type == other_type && name == other->ml_name &&
             type_name == other_type->tp_name && type_version == other_type->tp_version_tag;
    }
  };
  static_assert(sizeof(Place) == 64);

  // Whether functions that are bound to such an object are pybind11's, which makes and frees them.
  static bool is_pybind11s(const PyTypeObject* type) {
    return type == &PyCapsule_Type || std::strstr(type->tp_name, "pybind11") != nullptr;
  }

  static size_t place_of(const PyMethodDef* definition, const PyTypeObject* type) {
    const uint64_t both =
        reinterpret_cast<uintptr_t>(definition) ^ reinterpret_cast<uintptr_t>(type) << 1;
    return static_cast<size_t>(both * kOddNumber >> (64 - kRecentBits));
  }

  Place places_[size_t{1} << kRecentBits];
};

inline RecentFunctions recent_functions;

// A name could not be had. Returns -1 where that was a signal handler's doing, whose exception is
// the program's.
inline int without_name() {
  if (!PyErr_Occurred()) return 0;
  const bool ours =
      PyErr_ExceptionMatches(PyExc_MemoryError) || PyErr_ExceptionMatches(PyExc_RecursionError);
  if (ours) PyErr_Clear();
  return ours ? 0 : -1;
}

// The names of calls by code object and instruction: what has none yet gets one, which is kept for
// the next calls. A code object lives as long as its names, so that another one at its address
// can't be taken for it.
//
// Calls run their code from an instruction on: the first one, or of a generator where it was
// suspended. Numbers below kAtBegin stand for what is called from an instruction
// (`kFirstCallSite`).
class CallNames {
 public:
  // From now on calls are called as Python's ProgramTexts say. False with the error set.
  bool read(PyObject* texts) {
    Reference of_code(PyObject_GetAttrString(texts, "of_code"));
    if (!of_code || !texts_.read(texts)) return false;
    of_code_ = std::move(of_code);
    forget();
    return true;
  }

  // To free code may run Python, which may ask for the names that are left: there are none by then.
  void forget() {
    Names forgotten;
    forgotten.swap(names_);
    recent_names.clear(), recent_functions.clear();
  }

  // Null where it isn't known yet.
  const CallName* known(PyObject* code, int instruction) const {
    const auto found = names_.find({code, instruction});
    return found != names_.end() ? &found->second : nullptr;
  }

  // Of calls that run this code from that instruction on. Null with the error set.
  const CallName* of_code(PyObject* code, PyFrameObject* frame, int instruction) {
    const int line = PyFrame_GetLineNumber(frame);
    CallName name = texts_.of_code(reinterpret_cast<PyCodeObject*>(code), line);
    if (name.hides == Hides::kAskFrame && !ask_python(code, line, name)) return nullptr;
    return keep(code, instruction, std::move(name));
  }

  // Of the line that the frame is at, where it calls. Without a text for ours. Runs no Python.
  const CallName* of_call_site(PyObject* code, PyFrameObject* frame, int instruction) {
    const int place = kFirstCallSite - instruction;
    if (const CallName* line = known(code, place)) return line;
    CallName line;
    line.text = texts_.of_line(reinterpret_cast<PyCodeObject*>(code), PyFrame_GetLineNumber(frame));
    return keep(code, place, std::move(line));
  }

 private:
  static constexpr int kFirstCallSite =
      -3;  // from here on downwards, instead of an instruction: of the call that it makes

  static constexpr size_t kMostNames = 1 << 15;

  using Key = std::pair<const PyObject*, int>;
  struct HashOfKey {
    size_t operator()(const Key& key) const {
      return static_cast<size_t>(spread(key.first, key.second));
    }
  };
  using Names = std::unordered_map<Key, CallName, HashOfKey>;

  const CallName* keep(PyObject* code, int instruction, CallName name) {
    if (names_.size() >= kMostNames) forget();
    name.code = Reference(Py_NewRef(code));
    return &names_.emplace(Key{code, instruction}, std::move(name)).first->second;
  }

  // What Python answers where only it knows.
  bool ask_python(PyObject* code, int line, CallName& name) {
    const Reference asked(Py_NewRef(of_code_.get())), number(PyLong_FromLong(line));
    PyObject* const arguments[] = {code, number.get()};
    Reference answer(number ? call_unseen(asked.get(), arguments, 2) : nullptr);
    if (!answer) return false;
    if (PyUnicode_Check(answer.get())) {
      name.text = as_utf8(answer.get());
      name.hides = Hides::kNothing;
    } else {
      name.of_frame = std::move(answer);
    }
    return true;
  }

  Reference of_code_;
  CallTexts texts_;
  Names names_;
};

}  // namespace recfn
