// The names of calls of C functions, by the function's definition and the type that it is bound to.
//
// Neither is kept alive. What another definition or type at the same address differs in is kept and compared: the function's
// pointer and both names'.
#pragma once
#include "calls/call_name.hpp"

#include <vector>

namespace recfn {

class FunctionNames {
 public:
  // Null where it isn't known yet, or is no builtin function.
  const CallName* find(PyObject* function) const;
  // Null without memory.
  const CallName* keep(PyObject* function, CallName name);
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

  static Key key_of(PyObject* function);
  static size_t hash_of(const Key& key);
  Slot& slot_of(const Key& key);
  void grow();

  std::vector<Slot> slots_;  // 2^n, half empty; each at the first free slot from its hash on
  size_t count_ = 0;
};

}  // namespace recfn
