// The names of calls, kept for the next ones: those of Python functions with the code object, of C functions by their addresses,
// and of both the recent ones in tables where a call finds its name with one look. Everything here needs the GIL.
#pragma once
#include <dlfcn.h>

#include <map>
#include <memory>
#include <unordered_map>
#include <utility>

#include "calls/call_texts.hpp"
#include "core/known_calls.hpp"
#include "core/registry.hpp"
#include "cpython/python.hpp"
#include "model/numbers.hpp"

namespace recfn {

constexpr uint32_t kRecentBits = 10;  // of places in a table of recent names

// Names that were found lately, of what is shown, by code object and instruction. Whoever frees a name takes it out.
class RecentNames {
 public:
  // Null where it isn't among them.
  const KnownCall* find(const PyObject* code, int instruction) const {
    const Place& place = places_[place_of(code, instruction)];
    return place.code == code && place.instruction == instruction ? found_at(&place.call) : nullptr;
  }
  void keep(const PyObject* code, int instruction, const CallName& name) {
    places_[place_of(code, instruction)] = {code, instruction, name.known()};
  }
  void remove(const PyObject* code, int instruction) {
    if (find(code, instruction) != nullptr) places_[place_of(code, instruction)] = {};
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
    const uint64_t sum = reinterpret_cast<uintptr_t>(code) + static_cast<uint64_t>(instruction);
    return static_cast<size_t>(sum * kOddNumber >> (64 - kRecentBits));
  }

  Place places_[size_t{1} << kRecentBits];
};

inline RecentNames recent_names;

// The names of calls of one code object: they go when it goes, so that another one at its address can't be taken for it, and
// nothing keeps it alive.
class NamesOfCode {
 public:
  // False where CPython has no place for them.
  static bool prepare() {
    if (place < 0) place = request_index([](void* names) { delete static_cast<NamesOfCode*>(names); });
    return place >= 0;
  }

  // Of calls that run this code from that instruction on: the first one, or of a generator where it was suspended. Null where it
  // isn't known yet. Names of another version than the present one aren't. Numbers below kAtBegin stand for what is called from an
  // instruction (`kFirstCallSite`).
  static const CallName* find(PyObject* code, int instruction, uint64_t version) {
    const NamesOfCode* names = of(code);
    if (names == nullptr || names->version_ != version) return nullptr;
    const auto found = names->by_instruction_.find(instruction);
    return found != names->by_instruction_.end() ? &found->second : nullptr;
  }

  // Null where CPython has no place for it.
  static const CallName* keep(PyObject* code, int instruction, uint64_t version, CallName name) {
    NamesOfCode* names = of(code);
    if (names == nullptr) names = make(code, version);
    if (names == nullptr) return nullptr;
    if (names->version_ != version) names->forget(), names->version_ = version;
    return &names->by_instruction_.emplace(instruction, std::move(name)).first->second;
  }

  ~NamesOfCode() { forget(); }

 private:
  NamesOfCode(PyObject* code, uint64_t version) : code_(code), version_(version) {}

  static NamesOfCode* of(PyObject* code) {
    void* kept = nullptr;
    get_extra(code, place, &kept);
    return static_cast<NamesOfCode*>(kept);
  }

  static NamesOfCode* make(PyObject* code, uint64_t version) {
    std::unique_ptr<NamesOfCode> names(new NamesOfCode(code, version));
    if (set_extra(code, place, names.get()) == 0) return names.release();
    PyErr_Clear();
    return nullptr;
  }

  // To free a name may run Python, which may ask for the names that are left: there are none by then.
  void forget() {
    std::map<int, CallName> forgotten;
    forgotten.swap(by_instruction_);
    for (const auto& [instruction, name] : forgotten) recent_names.remove(code_, instruction);
  }

#if PY_VERSION_HEX >= 0x030C0000
  static constexpr auto request_index = PyUnstable_Eval_RequestCodeExtraIndex;
  static constexpr auto get_extra = PyUnstable_Code_GetExtra;
  static constexpr auto set_extra = PyUnstable_Code_SetExtra;
#else
  static constexpr auto request_index = _PyEval_RequestCodeExtraIndex;
  static constexpr auto get_extra = _PyCode_GetExtra;
  static constexpr auto set_extra = _PyCode_SetExtra;
#endif
  static inline Py_ssize_t place = -1;

  PyObject* code_;    // which they go with
  uint64_t version_;  // whose names they are
  std::map<int, CallName> by_instruction_;
};

inline uint64_t scrambled(const PyMethodDef* definition, const PyTypeObject* type) {
  return (reinterpret_cast<uintptr_t>(definition) ^ reinterpret_cast<uintptr_t>(type) << 1) * kOddNumber;
}

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
  // Not what another look must find again: what is bound to nothing, what may be freed and changed unseen.
  void keep(const CFunction& function, const CallName& name) {
    const PyMethodDef* const definition = function.definition;
    if (function.bound_to == nullptr || name.in_library != definition->ml_name) return;
    const PyTypeObject* const type = Py_TYPE(function.bound_to);
    const uint32_t version = type->tp_version_tag;
    if (version == 0) return;
    places_[place_of(definition, type)] = {definition, type, definition->ml_name, type->tp_name, version, name.known()};
  }
  void clear() {
    for (Place& place : places_) place = {};
  }

 private:
  // Another definition at the same address has another name, of which the pointer says enough where it is a library's. Another
  // type has another version, a number that CPython gives each type, anew when it changes, and 0 while it has none; or another
  // name, where it was renamed without (from 3.13 on) or has another's number after `sys._clear_type_cache` (on 3.10).
  struct alignas(64) Place {
    const PyMethodDef* definition = nullptr;
    const PyTypeObject* type = nullptr;
    const void *name = nullptr, *type_name = nullptr;
    uint32_t type_version = 0;
    KnownCall call;

    bool is_of(const PyMethodDef* other, const PyTypeObject* other_type) const {
      return definition == other && type == other_type && name == other->ml_name && type_name == other_type->tp_name &&
             type_version == other_type->tp_version_tag;
    }
  };
  static_assert(sizeof(Place) == 64);

  static size_t place_of(const PyMethodDef* definition, const PyTypeObject* type) {
    return static_cast<size_t>(scrambled(definition, type) >> (64 - kRecentBits));
  }

  Place places_[size_t{1} << kRecentBits];
};

inline RecentFunctions recent_functions;

// The names of calls of C functions, by the addresses of the function's definition and of the type that it is bound to.
//
// Neither is kept alive, and what is at an address may be another one by now. So a name is taken only where it says what the
// definition and the type are called now; else the new one takes its place.
class FunctionNames {
 public:
  // Null where it isn't known yet.
  const CallName* find(const CFunction& function) const {
    const auto found = names_.find(key_of(function));
    return found != names_.end() && CallTexts::is_of_function(found->second.text, function) ? &found->second : nullptr;
  }

  // Null where the function has no definition.
  const CallName* keep(const CFunction& function, CallName name) {
    if (function.definition == nullptr) return nullptr;
    if (names_.size() >= kMostNames) clear();
    return &names_.insert_or_assign(key_of(function), std::move(name)).first->second;
  }

  void clear() {
    recent_functions.clear();
    names_.clear();
  }

 private:
  static constexpr size_t kMostNames = 1 << 16;

  using Key = std::pair<const PyMethodDef*, const PyTypeObject*>;
  struct HashOfKey {
    size_t operator()(const Key& key) const { return scrambled(key.first, key.second); }
  };

  static Key key_of(const CFunction& function) {
    return {function.definition, function.bound_to != nullptr ? Py_TYPE(function.bound_to) : nullptr};
  }

  std::unordered_map<Key, CallName, HashOfKey> names_;
};

// With the hash that threads' dictionaries have.
inline CallName hashed(CallName name) {
  const ThreadBuffer* buffer = registry().current();
  name.hash = buffer != nullptr ? hash_name(name.name(), buffer->name_seed) : 0;
  return name;
}

// A name could not be had. Returns -1 where that was a signal handler's doing, whose exception is the program's.
inline int without_name() {
  if (!PyErr_Occurred()) return 0;
  const bool ours = PyErr_ExceptionMatches(PyExc_MemoryError) || PyErr_ExceptionMatches(PyExc_RecursionError);
  if (ours) PyErr_Clear();
  return ours ? 0 : -1;
}

// Calls that have no name yet: it is made, and kept for the next ones.
class CallNames {
 public:
  // From now on calls are called as Python's ProgramTexts say. False with the error set.
  bool read(PyObject* texts) {
    Reference of_code(PyObject_GetAttrString(texts, "of_code"));
    if (!of_code || !texts_.read(texts)) return false;
    of_code_ = std::move(of_code);
    functions_.clear();
    recent_names.clear();
    ++version_;
    return true;
  }

  // Of calls that run this code from that instruction on. Null with the error set, or where CPython has no place for it.
  const CallName* of_code(PyObject* code, PyFrameObject* frame, int instruction) {
    const uint64_t version = version_;
    const int line = PyFrame_GetLineNumber(frame);
    CallName name = texts_.of_code(reinterpret_cast<PyCodeObject*>(code), line);
    if (name.hides == Hides::kAskFrame && !ask_python(code, line, name)) return nullptr;
    return NamesOfCode::keep(code, instruction, version, hashed(std::move(name)));
  }

  // Of the line that the frame is at, where it calls. Without a text for ours; null as above. Runs no Python.
  const CallName* of_call_site(PyObject* code, PyFrameObject* frame, int instruction) {
    const int place = kFirstCallSite - instruction;
    if (const CallName* known = NamesOfCode::find(code, place, version_)) return known;
    CallName line;
    line.text = texts_.of_line(reinterpret_cast<PyCodeObject*>(code), PyFrame_GetLineNumber(frame));
    return NamesOfCode::keep(code, place, version_, std::move(line));
  }

  // Of calls of a C function; null where it has no definition.
  const CallName* of_function(PyObject* callable, const CFunction& function) {
    CallName name;
    name.text = CallTexts::of_function(callable, function);
    Dl_info library;  // pybind11 makes and frees the names of its functions
    const char* const text = function.definition != nullptr ? function.definition->ml_name : nullptr;
    name.in_library = text != nullptr && dladdr(text, &library) != 0 ? text : nullptr;
    return functions_.keep(function, hashed(std::move(name)));
  }

  // Another number each time that names change.
  uint64_t version() const { return version_; }
  const FunctionNames& functions() const { return functions_; }

 private:
  static constexpr int kFirstCallSite = -3;  // from here on downwards, instead of an instruction: of the call that it makes

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

  uint64_t version_ = 0;
  Reference of_code_;
  CallTexts texts_;
  FunctionNames functions_;
};

}  // namespace recfn
