// The C functions that were called lately, each in the one place that its definition and type have.
#pragma once
#include "calls/function_names.hpp"

namespace recfn {

class RecentFunctions {
 public:
  // Null where it isn't among them, as what is bound to nothing never is.
  const KnownCall* find(const CFunction& function) const {
    if (__builtin_expect(function.bound_to == nullptr, 0)) return nullptr;
    const PyTypeObject* const type = Py_TYPE(function.bound_to);
    const Place& place = places_[place_of(function.definition, type)];
    return place.is_of(function.definition, type) ? found_at(&place.call) : nullptr;
  }
  void keep(const CFunction& function, const CallName& name) {
    if (function.bound_to == nullptr) return;
    const PyTypeObject* const type = Py_TYPE(function.bound_to);
    const PyMethodDef* const definition = function.definition;
    const auto* const pointer = reinterpret_cast<const void*>(definition->ml_meth);
    places_[place_of(definition, type)] = {definition, type, pointer, definition->ml_name, type->tp_name, name.known()};
  }
  void clear() {
    for (Place& place : places_) place = {};
  }

 private:
  static constexpr uint32_t kPlaceBits = 10;
  // What tells another definition or type at the same address is compared, as FunctionNames does.
  struct alignas(64) Place {
    const PyMethodDef* definition = nullptr;
    const PyTypeObject* type = nullptr;
    const void *pointer = nullptr, *name = nullptr, *type_name = nullptr;
    KnownCall call;

    bool is_of(const PyMethodDef* other, const PyTypeObject* other_type) const {
      return definition == other && type == other_type && pointer == reinterpret_cast<const void*>(other->ml_meth) &&
             name == other->ml_name && type_name == other_type->tp_name;
    }
  };

  static size_t place_of(const PyMethodDef* definition, const PyTypeObject* type) {
    constexpr uint64_t kOdd = 0x9E37'79B9'7F4A'7C15;  // 2^64 divided by the golden ratio
    const uint64_t sum = reinterpret_cast<uintptr_t>(definition) ^ reinterpret_cast<uintptr_t>(type) << 1;
    return static_cast<size_t>(sum * kOdd >> (64 - kPlaceBits));
  }

  Place places_[size_t{1} << kPlaceBits];
};

extern RecentFunctions recent_functions;  // only with the GIL

}  // namespace recfn
