// The names of calls, kept for the next ones: of Python functions as long as these live and calls
// are traced, of C functions the recent ones. Both stand in tables where a call finds its name with
// one look. Nothing of the program's lives longer for that. Everything here needs the GIL.
#pragma once
#include <cstring>
#include <map>
#include <unordered_map>
#include <utility>

#include "calls/call_texts.hpp"
#include "calls/known_calls.hpp"
#include "cpython/calls_without_dynamo.hpp"
#include "cpython/python.hpp"
#include "model/numbers.hpp"

namespace recfn {

constexpr uint32_t kRecentBits = 10;  // of places in a table of recent names

// Names that were found lately, of what is shown, by code object and instruction. Whoever frees
// names empties it.
class RecentNames {
 public:
  // Null where it isn't among them.
  const KnownCall* find(const PyObject* code, int instruction) const {
    const Entry& entry = entries_[slot_index(code, instruction)];
    return entry.code == code && entry.instruction == instruction ? &entry.call : nullptr;
  }
  void cache(const PyObject* code, int instruction, const std::string& name) {
    entries_[slot_index(code, instruction)] = {code, instruction, KnownCall(text_of(name))};
  }
  void remove(const PyObject* code, int instruction) {
    if (find(code, instruction) != nullptr) entries_[slot_index(code, instruction)] = {};
  }
  void clear() {
    for (Entry& entry : entries_) entry = {};
  }

 private:
  struct Entry {
    const PyObject* code = nullptr;
    int64_t instruction = 0;
    KnownCall call;
  };

  static size_t slot_index(const PyObject* code, int instruction) {
    const uint64_t sum = reinterpret_cast<uintptr_t>(code) + static_cast<uint64_t>(instruction);
    return static_cast<size_t>(sum * kOddNumber >> (64 - kRecentBits));
  }

  Entry entries_[size_t{1} << kRecentBits];
};

inline RecentNames recent_names;

// The C functions that were called lately, each in the one place that its definition and type have.
class RecentFunctions {
 public:
  // Null where it isn't among them, as what is bound to nothing never is.
  const KnownCall* find(const CFunction& function) const {
    if (__builtin_expect(function.bound_to == nullptr, 0)) return nullptr;
    const PyTypeObject* const type = Py_TYPE(function.bound_to);
    const Entry& entry = entries_[slot_index(function.definition, type)];
    return entry.matches(function.definition, type) ? &entry.call : nullptr;
  }
  // But not what is bound to nothing, has a type that may change unseen, or may be freed with its
  // definition.
  void cache(const CFunction& function, const std::string& name) {
    const PyMethodDef* const definition = function.definition;
    const PyTypeObject* const type =
        function.bound_to != nullptr ? Py_TYPE(function.bound_to) : nullptr;
    if (type == nullptr || type->tp_version_tag == 0 || is_pybind11s(type)) return;
    const uint32_t version = type->tp_version_tag;
    entries_[slot_index(definition, type)] = {definition,    type,    definition->ml_name,
                                              type->tp_name, version, KnownCall(text_of(name))};
  }
  void clear() {
    for (Entry& entry : entries_) entry = {};
  }

 private:
  // Another definition at the same address has another name, of which the pointer says enough where
  // it is a library's. Another type has another version, a number that CPython gives each type,
  // anew when it changes, and 0 while it has none; or another name, where it was renamed without
  // (from 3.13 on) or has another's number after `sys._clear_type_cache` (on 3.10).
  struct alignas(64) Entry {
    const PyMethodDef* definition = nullptr;
    const PyTypeObject* type = nullptr;
    const void* name = nullptr;
    const void* type_name = nullptr;
    uint32_t type_version = 0;
    KnownCall call;

    bool matches(const PyMethodDef* other, const PyTypeObject* other_type) const {
      return definition == other && type == other_type && name == other->ml_name &&
             type_name == other_type->tp_name && type_version == other_type->tp_version_tag;
    }
  };
  static_assert(sizeof(Entry) == 64);

  // Whether functions that are bound to such an object are pybind11's, which makes and frees them.
  static bool is_pybind11s(const PyTypeObject* type) {
    return type == &PyCapsule_Type || std::strstr(type->tp_name, "pybind11") != nullptr;
  }

  static size_t slot_index(const PyMethodDef* definition, const PyTypeObject* type) {
    const uint64_t both =
        reinterpret_cast<uintptr_t>(definition) ^ reinterpret_cast<uintptr_t>(type) << 1;
    return static_cast<size_t>(both * kOddNumber >> (64 - kRecentBits));
  }

  Entry entries_[size_t{1} << kRecentBits];
};

inline RecentFunctions recent_functions;

// The names of calls of Python functions, by code object and instruction.
//
// When a code object ends, CPython calls the function that goes with its extra: its names are
// forgotten then, because another one may come to its address. A reference would keep alive what a
// program makes and drops again (by `exec`, say). To see at each call whether it is still the same
// code object would cost each call.
class CodeNames {
 public:
  using ByInstruction = std::map<int, CallName>;

  // False where other tools have taken all places that CPython has for extras.
  bool prepare() {
    if (slot_ < 0) slot_ = request_slot(on_code_freed);
    return slot_ >= 0;
  }

  // Null where it isn't known yet.
  const CallName* find(const PyObject* code, int instruction) const {
    const auto entry = names_.find(code);
    if (entry == names_.end()) return nullptr;
    const auto found = entry->second.find(instruction);
    return found != entry->second.end() ? &found->second : nullptr;
  }

  const CallName* cache(PyObject* code, int instruction, CallName name) {
    auto entry = names_.find(code);
    if (entry == names_.end()) entry = add(code);
    return &entry->second.emplace(instruction, std::move(name)).first->second;
  }

  void clear() {
    names_.clear();
    recent_names.clear();
  }

 private:
  static constexpr size_t kMaxCodes = 1 << 15;

  using Names = std::unordered_map<const PyObject*, ByInstruction>;

#if PY_VERSION_HEX >= 0x030C0000
  static constexpr auto request_slot = PyUnstable_Eval_RequestCodeExtraIndex;
  static constexpr auto set_extra = PyUnstable_Code_SetExtra;
#else
  static constexpr auto request_slot = _PyEval_RequestCodeExtraIndex;
  static constexpr auto set_extra = _PyCode_SetExtra;
#endif

  // The extra is the code object's own address, because it is all that `on_code_freed` is given.
  // Where it is set already, from before a `clear`, CPython calls that for the earlier extra: names
  // are added after it, and stay.
  Names::iterator add(PyObject* code) {
    if (names_.size() >= kMaxCodes) clear();
    if (set_extra(code, slot_, code) < 0) {
      PyErr_Clear();
      throw std::bad_alloc();
    }
    return names_.try_emplace(code).first;
  }

  static void on_code_freed(void* code);

  Py_ssize_t slot_ = -1;
  Names names_;
};

// Never destroyed: code objects may end after it would be.
inline CodeNames& code_names = *new CodeNames;

inline void CodeNames::on_code_freed(void* ended) {
  Names& names = code_names.names_;
  const auto entry = names.find(static_cast<PyObject*>(ended));
  if (entry == names.end()) return;
  for (const auto& [instruction, name] : entry->second) {
    recent_names.remove(entry->first, instruction);
  }
  names.erase(entry);
}

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
// the next calls.
//
// Calls run their code from an instruction on: the first one, or of a generator where it was
// suspended. Numbers below kAtBegin stand for what is called from an instruction
// (`kFirstCallSite`).
class CallNames {
 public:
  // From now on calls are called as Python's ProgramTexts say. False with the error set.
  bool read(PyObject* texts) {
    Reference code_text(PyObject_GetAttrString(texts, "code_text"));
    if (!code_text || !texts_.read(texts)) return false;
    if (!code_names.prepare()) {
      PyErr_SetString(PyExc_RuntimeError,
                      "other tools have all places for extras of code objects; trace without them");
      return false;
    }
    code_text_ = std::move(code_text);
    forget();
    return true;
  }

  void forget() {
    code_names.clear();
    recent_functions.clear();
  }

  // Null where it isn't known yet.
  const CallName* known(PyObject* code, int instruction) const {
    return code_names.find(code, instruction);
  }

  // Of calls that run this code from that instruction on. Null with the error set.
  const CallName* code_name(PyObject* code, PyFrameObject* frame, int instruction) {
    const int line = PyFrame_GetLineNumber(frame);
    CallName name = texts_.code_name(reinterpret_cast<PyCodeObject*>(code), line);
    if (name.hides == Hides::kAskFrame && !ask_python(code, line, name)) return nullptr;
    return code_names.cache(code, instruction, std::move(name));
  }

  // Of the line that the frame is at, where it calls. Without a text for ours. Runs no Python.
  const CallName* call_site_name(PyObject* code, PyFrameObject* frame, int instruction) {
    const int call_site = kFirstCallSite - instruction;
    if (const CallName* line = known(code, call_site)) return line;
    CallName line;
    line.text =
        texts_.line_name(reinterpret_cast<PyCodeObject*>(code), PyFrame_GetLineNumber(frame));
    return code_names.cache(code, call_site, std::move(line));
  }

 private:
  // From here on downwards, instead of an instruction: of the call that it makes.
  static constexpr int kFirstCallSite = -3;

  // What Python answers where only it knows.
  bool ask_python(PyObject* code, int line, CallName& name) {
    // Another thread may start a tracing with other texts while Python runs: what is called is
    // owned.
    const Reference asked(Py_NewRef(code_text_.get()));
    const Reference number(PyLong_FromLong(line));
    PyObject* const arguments[] = {code, number.get()};
    Reference answer(number ? call_without_dynamo(asked.get(), arguments, 2) : nullptr);
    if (!answer) return false;
    if (PyUnicode_Check(answer.get())) {
      name.text = as_utf8(answer.get());
      name.hides = Hides::kNothing;
    } else {
      name.frame_namer = std::move(answer);
    }
    return true;
  }

  Reference code_text_;
  CallTexts texts_;
};

}  // namespace recfn
