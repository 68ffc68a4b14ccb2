// The names of calls of Python functions, kept with the code object: they go when it goes, so that another one at its address can't
// be taken for it, and nothing keeps it alive.
#pragma once
#include "calls/call_name.hpp"

namespace recfn {

class CodeNames {
 public:
  // False where CPython has no place for them.
  static bool prepare();

  // Of calls that run this code from that instruction on; null where it isn't known yet. Names of another version aren't.
  static const CallName* find(PyObject* code, int instruction, uint64_t version);
  // Null without memory.
  static const CallName* keep(PyObject* code, int instruction, uint64_t version, CallName name);
};

}  // namespace recfn
