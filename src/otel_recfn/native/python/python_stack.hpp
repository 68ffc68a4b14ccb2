// The calling thread's Python stack as text.
#pragma once
#include "cpython/python.hpp"

#include <cstdint>
#include <string>

namespace recfn {

// One "file(line): function" a line, innermost first, without frames of files below the directory that was set. Whole lines
// only, at most `size` bytes. Returns the bytes written. The GIL must be held.
uint32_t python_stack(char* text, uint32_t size);

// The same for threads that don't hold the GIL; nothing in threads that Python doesn't know.
uint32_t python_stack_with_gil(char* text, uint32_t size);

// While traced calls say which line called them: that line, for what begins now. Else null. The GIL must be held.
extern std::string (*call_site_now)();

}  // namespace recfn
