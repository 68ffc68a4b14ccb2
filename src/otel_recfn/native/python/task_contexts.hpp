// Which contextvars contexts are entered in the calling thread, as numbers that are never given twice.
#pragma once
#include <cstdint>

namespace recfn {

// Fills at most `most` numbers, the innermost context's first; returns how many. Needs the GIL.
uint64_t entered_contexts(uint64_t* numbers, uint64_t most);

// Finds out, once, where CPython keeps a context's outer one. Where that can't be found only the innermost is known.
void find_outer_context_offset();
bool knows_outer_contexts();

}  // namespace recfn
