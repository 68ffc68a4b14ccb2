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
  // Null where it isn't known yet.
  const CallName* find(const CFunction& function) const {
    if (__builtin_expect(mask_ == 0, 0)) return nullptr;
    const PyTypeObject* const type = type_of(function);
    const Slot& first = slots_.data()[hash_of(function.definition, type) & mask_];
    if (__builtin_expect(first.key.is_of(function.definition, type), 1)) return first.name;
    return find_after(function.definition, type);
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
    bool is_of(const PyMethodDef* other, const PyTypeObject* other_type) const {
      return definition == other && type == other_type && pointer == reinterpret_cast<const void*>(other->ml_meth) &&
             name == other->ml_name && (type == nullptr || type_name == type->tp_name);
    }
  };
  struct Slot {
    Key key{};
    CallName* name = nullptr;
  };

  static const PyTypeObject* type_of(const CFunction& function) {
    return function.bound_to != nullptr ? Py_TYPE(function.bound_to) : nullptr;
  }

  static Key key_of(const PyMethodDef* definition, const PyTypeObject* type) {
    return {definition, reinterpret_cast<const void*>(definition->ml_meth), definition->ml_name, type,
            type != nullptr ? type->tp_name : nullptr};
  }

  static size_t hash_of(const PyMethodDef* definition, const PyTypeObject* type) {
    constexpr uint64_t kOdd = 0x9E37'79B9'7F4A'7C15;  // 2^64 divided by the golden ratio
    return static_cast<size_t>((reinterpret_cast<uintptr_t>(definition) ^ reinterpret_cast<uintptr_t>(type) << 1) * kOdd >> 32);
  }

  [[gnu::noinline]] const CallName* find_after(const PyMethodDef* definition, const PyTypeObject* type) const;
  Slot& slot_of(const Key& key);  // where the key's name is, or would be
  void grow();

  std::vector<Slot> slots_;  // 2^n, half empty; each at the first free slot from its hash on
  size_t mask_ = 0;          // 2^n - 1; 0 while there are none
  size_t count_ = 0;
};

}  // namespace recfn
