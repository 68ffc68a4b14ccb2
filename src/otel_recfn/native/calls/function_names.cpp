#include "calls/function_names.hpp"

#include <new>
#include <utility>

namespace recfn {
namespace {

constexpr size_t kFirstSlots = 1024, kMostNames = 1 << 16;
constexpr uint64_t kOdd = 0x9E37'79B9'7F4A'7C15;  // 2^64 divided by the golden ratio

}  // namespace

FunctionNames::Key FunctionNames::key_of(PyObject* function) {
  if (!PyCFunction_Check(function)) return {};
  const PyMethodDef* definition = reinterpret_cast<PyCFunctionObject*>(function)->m_ml;
  PyObject* bound_to = reinterpret_cast<PyCFunctionObject*>(function)->m_self;
  const PyTypeObject* type = bound_to != nullptr ? Py_TYPE(bound_to) : nullptr;
  return {definition, reinterpret_cast<const void*>(definition->ml_meth), definition->ml_name, type,
          type != nullptr ? type->tp_name : nullptr};
}

size_t FunctionNames::hash_of(const Key& key) {
  const uint64_t sum = (reinterpret_cast<uintptr_t>(key.definition) ^ reinterpret_cast<uintptr_t>(key.type) << 1) * kOdd;
  return static_cast<size_t>(sum ^ sum >> 32);
}

const CallName* FunctionNames::find(PyObject* function) const {
  const Key key = key_of(function);
  if (slots_.empty() || key.definition == nullptr) return nullptr;
  for (size_t at = hash_of(key);; ++at) {
    const Slot& slot = slots_[at & (slots_.size() - 1)];
    if (slot.name == nullptr || slot.key == key) return slot.name;
  }
}

const CallName* FunctionNames::keep(PyObject* function, CallName name) try {
  const Key key = key_of(function);
  if (key.definition == nullptr) return nullptr;
  if (count_ >= kMostNames) clear();
  if (2 * count_ >= slots_.size()) grow();
  auto* kept = new CallName(std::move(name));
  slot_of(key) = {key, kept};
  ++count_;
  return kept;
} catch (const std::bad_alloc&) {
  return nullptr;
}

// Where the key's name is, or would be.
FunctionNames::Slot& FunctionNames::slot_of(const Key& key) {
  for (size_t at = hash_of(key);; ++at) {
    Slot& slot = slots_[at & (slots_.size() - 1)];
    if (slot.name == nullptr || slot.key == key) return slot;
  }
}

void FunctionNames::grow() {
  std::vector<Slot> old(slots_.empty() ? kFirstSlots : 2 * slots_.size());
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.name != nullptr) slot_of(slot.key) = slot;
  }
}

void FunctionNames::clear() {
  for (Slot& slot : slots_) {
    delete slot.name;
    slot.name = nullptr;
  }
  count_ = 0;
}

}  // namespace recfn
