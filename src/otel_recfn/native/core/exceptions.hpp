// Exceptions in a thread that finds no memory.
#pragma once
#include <exception>

namespace recfn {

// Has the C++ runtime make now what it keeps of exceptions for the calling thread. It would do that at the thread's first throw,
// and where there is no memory for it then, the loader ends the process.
inline void prepare_for_exceptions() noexcept {
  [[maybe_unused]] volatile const int none = std::uncaught_exceptions();
}

}  // namespace recfn
