#include "memory/kept_blocks.hpp"

#include <array>
#include <atomic>
#include <new>

namespace recfn {
namespace {

constexpr size_t kMostKeptBytes = size_t{48} << 20;
constexpr unsigned kSizes = 10;  // each twice the one before
constexpr size_t kMostOfASize = 32;

std::atomic<bool> keeps{false};
std::atomic<size_t> kept_bytes{0};
std::array<std::array<std::atomic<void*>, kMostOfASize>, kSizes> kept{};

constexpr size_t size_of(unsigned index) { return (2 * kLargeBlock) << index; }

// kSizes where it is larger than all of them.
unsigned size_index(size_t bytes) {
  unsigned index = 0;
  while (index < kSizes && size_of(index) < bytes) ++index;
  return index;
}

void* taken(unsigned index) noexcept {
  for (std::atomic<void*>& place : kept[index]) {
    if (place.load() == nullptr) continue;
    if (void* block = place.exchange(nullptr)) {
      kept_bytes.fetch_sub(size_of(index));
      return block;
    }
  }
  return nullptr;
}

bool put(void* block, unsigned index) noexcept {
  for (std::atomic<void*>& place : kept[index]) {
    void* none = nullptr;
    if (place.compare_exchange_strong(none, block)) return true;
  }
  return false;
}

bool keep(void* block, unsigned index) noexcept {
  if (index >= kSizes || !keeps.load()) return false;
  const size_t size = size_of(index);
  if (kept_bytes.fetch_add(size) + size <= kMostKeptBytes && put(block, index)) return true;
  kept_bytes.fetch_sub(size);
  return false;
}

void free_all() noexcept {
  for (unsigned index = 0; index < kSizes; ++index) {
    while (void* block = taken(index)) ::operator delete(block);
  }
}

}  // namespace

void* take_block(size_t bytes) {
  const unsigned index = size_index(bytes);
  if (index >= kSizes) return ::operator new(bytes);
  if (void* block = taken(index)) return block;
  return ::operator new(size_of(index));
}

void give_back_block(void* block, size_t bytes) noexcept {
  if (!keep(block, size_index(bytes))) return ::operator delete(block);
  if (!keeps.load()) free_all();  // they ceased to be wanted meanwhile
}

void keep_blocks(bool wanted) noexcept {
  keeps.store(wanted);
  if (!wanted) free_all();
}

}  // namespace recfn
