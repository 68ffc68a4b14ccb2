// The names of calls of C functions, by the addresses of the function's definition and of the type that it is bound to.
//
// Neither is kept alive, and what is at an address may be another one by now. So a name is taken only where it says what the
// definition and the type are called now; else the new one takes its place.
#pragma once
#include "calls/c_function.hpp"
#include "calls/call_texts.hpp"

#include <vector>

namespace recfn {

class FunctionNames {
 public:
  // Null where it isn't known yet.
  const CallName* find(const CFunction& function) const;
  // Frees what was kept of others at these addresses.
  const CallName* keep(const CFunction& function, CallName name);
  void clear();

 private:
  struct Slot {
    const PyMethodDef* definition = nullptr;
    const PyTypeObject* type = nullptr;
    CallName* name = nullptr;
  };

  size_t place_of(const PyMethodDef* definition, const PyTypeObject* type) const;  // where their name is, or would be
  void grow();

  std::vector<Slot> slots_;  // 2^n, half empty; each at the first free slot from its hash on
  size_t mask_ = 0;          // 2^n - 1; 0 while there are none
  size_t count_ = 0;
};

}  // namespace recfn
