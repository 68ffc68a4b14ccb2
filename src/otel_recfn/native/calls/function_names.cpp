#include "calls/function_names.hpp"

#include "calls/recent_functions.hpp"

#include <utility>

namespace recfn {

RecentFunctions recent_functions;

namespace {

constexpr size_t kFirstSlots = 1024, kMostNames = 1 << 16;

const PyTypeObject* type_of(const CFunction& function) {
  return function.bound_to != nullptr ? Py_TYPE(function.bound_to) : nullptr;
}

size_t hash_of(const PyMethodDef* definition, const PyTypeObject* type) {
  constexpr uint64_t kOdd = 0x9E37'79B9'7F4A'7C15;  // 2^64 divided by the golden ratio
  return static_cast<size_t>((reinterpret_cast<uintptr_t>(definition) ^ reinterpret_cast<uintptr_t>(type) << 1) * kOdd >> 32);
}

}  // namespace

size_t FunctionNames::place_of(const PyMethodDef* definition, const PyTypeObject* type) const {
  for (size_t at = hash_of(definition, type);; ++at) {
    const Slot& slot = slots_[at & mask_];
    if (slot.name == nullptr || (slot.definition == definition && slot.type == type)) return at & mask_;
  }
}

const CallName* FunctionNames::find(const CFunction& function) const {
  if (mask_ == 0) return nullptr;
  const CallName* name = slots_[place_of(function.definition, type_of(function))].name;
  return name != nullptr && CallTexts::is_of_function(name->text, function) ? name : nullptr;
}

const CallName* FunctionNames::keep(const CFunction& function, CallName name) {
  if (function.definition == nullptr) return nullptr;
  if (count_ >= kMostNames) clear();
  if (2 * count_ >= slots_.size()) grow();
  auto* kept = new CallName(std::move(name));
  Slot& slot = slots_[place_of(function.definition, type_of(function))];
  count_ += slot.name == nullptr;
  delete slot.name;
  slot = {function.definition, type_of(function), kept};
  return kept;
}

void FunctionNames::grow() {
  std::vector<Slot> old(slots_.empty() ? kFirstSlots : 2 * slots_.size());
  old.swap(slots_);
  mask_ = slots_.size() - 1;
  for (const Slot& slot : old) {
    if (slot.name != nullptr) slots_[place_of(slot.definition, slot.type)] = slot;
  }
}

void FunctionNames::clear() {
  recent_functions.clear();
  for (Slot& slot : slots_) {
    delete slot.name;
    slot.name = nullptr;
  }
  count_ = 0;
}

}  // namespace recfn
