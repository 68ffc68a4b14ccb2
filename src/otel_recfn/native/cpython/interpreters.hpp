// Which interpreter a thread runs: taking the GIL in a subinterpreter's thread would wait for ever, or enter the wrong one.
#pragma once
#include "cpython/python.hpp"

namespace recfn {

// The state that the calling thread runs now; before CPython 3.12 possibly that of another thread, which holds the GIL.
inline PyThreadState* running_state() {
#if PY_VERSION_HEX >= 0x030D0000
  return PyThreadState_GetUnchecked();
#else
  return _PyThreadState_UncheckedGet();
#endif
}

// Whether the calling thread works for a subinterpreter. Needs no GIL.
inline bool in_subinterpreter() {
  PyInterpreterState* const main = PyInterpreterState_Main();
  if (PyInterpreterState_Head() == main) return false;  // the newest stands first: there are no others
  PyThreadState* const own = PyGILState_GetThisThreadState();
  if (own != nullptr && PyThreadState_GetInterpreter(own) != main) return true;
  PyThreadState* const running = running_state();
  if (running == nullptr || running == own) return false;
#if PY_VERSION_HEX < 0x030C0000
  if (running->thread_id != PyThread_get_thread_ident()) return false;
#endif
  return PyThreadState_GetInterpreter(running) != main;
}

// Whether the calling thread may take the GIL: Python knows it, as one of the main interpreter's.
inline bool python_knows_this_thread() { return PyGILState_GetThisThreadState() != nullptr && !in_subinterpreter(); }

}  // namespace recfn
