// The names of calls of Python functions, kept with the code object: they go when it goes, so that another one at its address can't
// be taken for it, and nothing keeps it alive.
#pragma once
#include "calls/call_texts.hpp"
#include "core/known_calls.hpp"

namespace recfn {

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
  static constexpr uint32_t kPlaceBits = 10;
  struct Place {
    const PyObject* code = nullptr;
    int64_t instruction = 0;
    KnownCall call;
  };

  static size_t place_of(const PyObject* code, int instruction) {
    constexpr uint64_t kOdd = 0x9E37'79B9'7F4A'7C15;  // 2^64 divided by the golden ratio
    const uint64_t sum = reinterpret_cast<uintptr_t>(code) + static_cast<uint64_t>(instruction);
    return static_cast<size_t>(sum * kOdd >> (64 - kPlaceBits));
  }

  Place places_[size_t{1} << kPlaceBits];
};

extern RecentNames recent_names;  // as all here, only with the GIL

class CodeNames {
 public:
  // False where CPython has no place for them.
  static bool prepare();

  // Of calls that run this code from that instruction on; null where it isn't known yet. Names of another version than the
  // present one aren't. Numbers below kAtBegin stand for what is called from an instruction (first_sight.cpp).
  static const CallName* find(PyObject* code, int instruction, uint64_t version);
  // Null where CPython has no place for it.
  static const CallName* keep(PyObject* code, int instruction, uint64_t version, CallName name);
};

}  // namespace recfn
