#include "calls/function_names.hpp"

#include "calls/recent_functions.hpp"

#include <new>
#include <utility>

namespace recfn {

RecentFunctions recent_functions;

namespace {

constexpr size_t kFirstSlots = 1024, kMostNames = 1 << 16;

}  // namespace

const CallName* FunctionNames::keep(const CFunction& function, CallName name) try {
  if (function.definition == nullptr) return nullptr;
  const Key key = key_of(function.definition, type_of(function));
  if (count_ >= kMostNames) clear();
  if (2 * count_ >= slots_.size()) grow();
  auto* kept = new CallName(std::move(name));
  slot_of(key) = {key, kept};
  ++count_;
  return kept;
} catch (const std::bad_alloc&) {
  return nullptr;
}

// Behind its first place.
const CallName* FunctionNames::find_after(const PyMethodDef* definition, const PyTypeObject* type) const {
  for (size_t at = hash_of(definition, type);; ++at) {
    const Slot& slot = slots_[at & mask_];
    if (slot.name == nullptr || slot.key.is_of(definition, type)) return slot.name;
  }
}

FunctionNames::Slot& FunctionNames::slot_of(const Key& key) {
  for (size_t at = hash_of(key.definition, key.type);; ++at) {
    Slot& slot = slots_[at & mask_];
    if (slot.name == nullptr || slot.key == key) return slot;
  }
}

void FunctionNames::grow() {
  std::vector<Slot> old(slots_.empty() ? kFirstSlots : 2 * slots_.size());
  old.swap(slots_);
  mask_ = slots_.size() - 1;
  for (const Slot& slot : old) {
    if (slot.name != nullptr) slot_of(slot.key) = slot;
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
