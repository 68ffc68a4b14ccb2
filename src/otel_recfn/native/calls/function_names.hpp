// The names of calls of C functions, by the function's definition and the type that it is bound to.
//
// Neither is kept alive. What another definition or type at the same address differs in is kept and compared: the function's
// pointer and both names'.
#pragma once
#include "calls/c_function.hpp"
#include "calls/call_name.hpp"

#include <vector>

namespace recfn {

class FunctionNames {
 public:
  // Null where it isn't known yet, or is no builtin function.
  const CallName* find(const CFunction& function) const {
    if (mask_ == 0 || function.definition == nullptr) return nullptr;
    const Key key = key_of(function);
    const Slot* const slots = slots_.data();
    const Slot& first = slots[hash_of(key) & mask_];
    if (__builtin_expect(first.key == key, 1)) return first.name;
    return find_after(key);
  }
  // Null without memory.
  const CallName* keep(const CFunction& function, CallName name);
  void clear();

 private:
  struct Key {
    const PyMethodDef* definition;
    const void *pointer, *name;
    const PyTypeObject* type;
    const void* type_name;
    bool operator==(const Key& other) const {
      return definition == other.definition && pointer == other.pointer && name == other.name && type == other.type &&
             type_name == other.type_name;
    }
  };
  struct Slot {
    Key key{};
    CallName* name = nullptr;
  };

  static Key key_of(const CFunction& function) {
    const PyMethodDef* definition = function.definition;
    if (definition == nullptr) return {};
    const PyTypeObject* type = function.bound_to != nullptr ? Py_TYPE(function.bound_to) : nullptr;
    return {definition, reinterpret_cast<const void*>(definition->ml_meth), definition->ml_name, type,
            type != nullptr ? type->tp_name : nullptr};
  }

  static size_t hash_of(const Key& key) {
    constexpr uint64_t kOdd = 0x9E37'79B9'7F4A'7C15;  // 2^64 divided by the golden ratio
    const uint64_t sum = (reinterpret_cast<uintptr_t>(key.definition) ^ reinterpret_cast<uintptr_t>(key.type) << 1) * kOdd;
    return static_cast<size_t>(sum ^ sum >> 32);
  }

  [[gnu::noinline]] const CallName* find_after(Key key) const;
  Slot& slot_of(const Key& key);
  void grow();

  std::vector<Slot> slots_;  // 2^n, half empty; each at the first free slot from its hash on
  size_t mask_ = 0;          // 2^n - 1; 0 while there are none
  size_t count_ = 0;
};

}  // namespace recfn
