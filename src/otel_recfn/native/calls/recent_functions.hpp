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
  // Not what another look must find again: what is bound to nothing, what may be freed and changed unseen.
  void keep(const CFunction& function, const CallName& name) {
    const PyMethodDef* const definition = function.definition;
    if (function.bound_to == nullptr || name.in_library != definition->ml_name) return;
    PyTypeObject* const type = Py_TYPE(function.bound_to);
    if (type->tp_version_tag == 0) return;
    const uint32_t version = type->tp_version_tag, mark = made_name_mark(type);
    places_[place_of(definition, type)] = {definition, type, definition->ml_name, type->tp_name, version, mark, name.known()};
  }
  void clear() {
    for (Place& place : places_) place = {};
  }

 private:
  static constexpr uint32_t kPlaceBits = 10;
  // Another definition at the same address has another name, of which the pointer says enough where it is a library's. Another
  // type has another version: a number that CPython gives each type, anew when it changes, and 0 while it has none. It may be
  // renamed without (from 3.13 on), and have another's number once `sys._clear_type_cache` was called (on 3.10).
  struct alignas(64) Place {
    const PyMethodDef* definition = nullptr;
    const PyTypeObject* type = nullptr;
    const void *name = nullptr, *type_name = nullptr;
    uint32_t type_version = 0;
    uint32_t type_name_mark = 0;  // 0: it can't be renamed
    KnownCall call;

    bool is_of(const PyMethodDef* other, const PyTypeObject* other_type) const {
      return definition == other && type == other_type && name == other->ml_name && type_name == other_type->tp_name &&
             type_version == other_type->tp_version_tag &&
             (__builtin_expect(type_name_mark == 0, 1) || type_name_mark == name_mark(other_type));
    }
  };
  static_assert(sizeof(Place) == 64);

  static bool can_be_renamed(const PyTypeObject* type) {
    constexpr unsigned long kHeap = Py_TPFLAGS_HEAPTYPE, kImmutable = Py_TPFLAGS_IMMUTABLETYPE;
    return (type->tp_flags & (kHeap | kImmutable)) == kHeap && name_object(type) != nullptr;
  }
  static PyObject* name_object(const PyTypeObject* type) { return reinterpret_cast<const PyHeapTypeObject*>(type)->ht_name; }

  // The hash that a str keeps of its content, where it has been asked for it.
  static uint32_t name_mark(const PyTypeObject* type) {
    return static_cast<uint32_t>(reinterpret_cast<const PyASCIIObject*>(name_object(type))->hash) | 1;
  }
  static uint32_t made_name_mark(const PyTypeObject* type) {
    if (!can_be_renamed(type)) return 0;
    if (PyUnicode_Type.tp_hash(name_object(type)) == -1) PyErr_Clear();  // not by a __hash__ of its own, of a subclass of str
    return name_mark(type);
  }

  static size_t place_of(const PyMethodDef* definition, const PyTypeObject* type) {
    constexpr uint64_t kOdd = 0x9E37'79B9'7F4A'7C15;  // 2^64 divided by the golden ratio
    const uint64_t sum = reinterpret_cast<uintptr_t>(definition) ^ reinterpret_cast<uintptr_t>(type) << 1;
    return static_cast<size_t>(sum * kOdd >> (64 - kPlaceBits));
  }

  Place places_[size_t{1} << kPlaceBits];
};

extern RecentFunctions recent_functions;  // only with the GIL

}  // namespace recfn
