// Garbage collections that must not come in the middle of something.
#pragma once
#include "cpython/python.hpp"

namespace recfn {

#if PY_VERSION_HEX < 0x030C0000
// Before CPython 3.12 each allocation may collect garbage, and so run Python code: of whoever
// refers weakly to what is collected, of gc.callbacks, and of a signal handler that is due by then.
// While one of these lives, none does. Needs the GIL, which must not be given away meanwhile.
class WithoutCollections {
 public:
  WithoutCollections() : was_enabled_(PyGC_Disable() != 0) {}
  WithoutCollections(const WithoutCollections&) = delete;
  WithoutCollections& operator=(const WithoutCollections&) = delete;
  ~WithoutCollections() {
    if (was_enabled_) PyGC_Enable();
  }

 private:
  const bool was_enabled_;
};
#else
struct WithoutCollections {  // collections come between two instructions of Python's only
  WithoutCollections() {}
};
#endif

}  // namespace recfn
