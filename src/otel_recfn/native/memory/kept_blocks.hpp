// Large blocks of memory, which batches use one after the other. Where the system gets them back in between, it clears and maps
// their pages anew for each batch, and that takes longer than writing them.
#pragma once
#include <cstddef>

namespace recfn {

constexpr size_t kLargeBlock = size_t{1} << 14;

// More than kLargeBlock bytes. From any thread, and without a lock, as the next two.
void* take_block(size_t bytes);
// `bytes`: as they were asked for.
void give_back_block(void* block, size_t bytes) noexcept;
// Whether blocks that are given back are kept: 48 MiB at most, where newer ones take the place of the oldest, and 64 of a
// size. Else all are freed.
void keep_blocks(bool wanted) noexcept;

}  // namespace recfn
